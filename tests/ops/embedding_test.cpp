#include "quern/ops/embedding.h"

#include "gradcheck_helper.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("rows of the table, in any layout and dtype") {
  const Tensor indices = from_vector<int64_t>({3, 0, 3, 2, 1, 0}, {2, 3});
  for (const auto dtype : {DType::bf16, DType::f32, DType::f64}) {
    const Tensor weight = random({4, 5}, 1, dtype);
    const Tensor y = embedding(indices, weight);
    CHECK(y.shape() == Shape{2, 3, 5});
    const auto index = indices.to_vector<int64_t>();
    const Tensor rows = raw::reshape(y, {6, 5});
    for (int64_t i = 0; i < 6; ++i)
      CHECK(same_bits(raw::select(rows, 0, i),
                      raw::select(weight, 0, index[static_cast<size_t>(i)])));
    CHECK(same_bits(embedding(strided(indices), strided(weight)), y));
  }
  CHECK(embedding(from_vector<int64_t>({1}, {}), random({4, 5}, 1)).shape() == Shape{5});
  CHECK(embedding(zeros({0, 2}, DType::i64), random({4, 5}, 1)).shape() == Shape{0, 2, 5});
}

TEST_CASE("gradients of repeated, absent and padding rows") {
  const Tensor indices = from_vector<int64_t>({3, 0, 3, 3, 1, 0}, {2, 3});
  check_gradients([](const Tensors& in) { return embedding(in[0], in[1]); },
                  {indices, leaf({5, 3}, 1)});
  check_gradients([](const Tensors& in) { return embedding(in[0], in[1]); },
                  {indices, strided(random({5, 3}, 1)).requires_grad_()});

  // With a padding row the gradient is by definition not the derivative: all but that row agree.
  const Tensor dy = random({2, 3, 3}, 2);
  for (const int64_t padding_idx : {0, -5}) {
    const Tensor plain = leaf({5, 3}, 1), padded = leaf({5, 3}, 1);
    embedding(indices, plain).backward(dy);
    embedding(indices, padded, padding_idx).backward(dy);
    CHECK(same_bits(raw::slice(padded.grad(), 0, 1, 5), raw::slice(plain.grad(), 0, 1, 5)));
    CHECK(same_bits(raw::select(padded.grad(), 0, 0), zeros({3}, DType::f64)));
  }
}

TEST_CASE("a bf16 table sums its gradient in f32") {
  // 257 ones: a bf16 sum would stop at 256.
  const Tensor weight = zeros({1, 1}, DType::bf16).requires_grad_();
  const Tensor dy = ones({258, 1}, DType::bf16);
  embedding(zeros({258}, DType::i64), weight).backward(dy);
  CHECK(weight.grad().item() == 258);
}

TEST_CASE("the same bits for any number of threads") {
  const test::Threads kept;
  const Tensor indices = randint(0, 50, {2000});
  const Tensor dy = random({2000, 33}, 1, DType::f32);
  Tensor first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const Tensor weight = random({50, 33}, 2, DType::f32).requires_grad_();
    embedding(indices, weight).backward(dy);
    if (!first.defined()) first = weight.grad();
    CHECK(same_bits(weight.grad(), first));
  }
}

TEST_CASE("what embedding refuses") {
  const Tensor weight = random({4, 5}, 1), indices = zeros({2}, DType::i64);
  CHECK_THROWS_WITH_AS(embedding(zeros({2}), weight),
                       "[embedding] indices: expected an i64 tensor, got f32 [2]", Error);
  CHECK_THROWS_WITH_AS(embedding(Tensor(), weight),
                       "[embedding] indices: expected an i64 tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(embedding(indices, ones({4})),
                       "[embedding] weight: expected a floating tensor [V, D], got f32 [4]", Error);
  CHECK_THROWS_WITH_AS(embedding(indices, ones({4, 5}, DType::i64)),
                       "[embedding] weight: expected a floating tensor [V, D], got i64 [4,5]",
                       Error);
  CHECK_THROWS_AS(embedding(indices, Tensor()), Error);
  CHECK_THROWS_WITH_AS(embedding(from_vector<int64_t>({0, 4}), weight),
                       "[embedding] indices: expected 0..3, got 4 as element 1", Error);
  CHECK_THROWS_WITH_AS(embedding(from_vector<int64_t>({-1}), weight),
                       "[embedding] indices: expected 0..3, got -1 as element 0", Error);
  CHECK_THROWS_WITH_AS(embedding(indices, weight, 4),
                       "[embedding] padding_idx: expected -4..3, got 4", Error);
}
