#include "quern/ops/embedding.h"

#include <cmath>

#include "gradcheck_helper.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("rows of the table, in any layout and dtype") {
  const Tensor indices = from_vector<int64_t>({3, 0, 3, 2, 1, 0}, {2, 3});
  for (const auto dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
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
    const Tensor rows = random({50, 33}, 2, DType::f32).requires_grad_();
    embedding(indices, rows, {.sparse = true}).backward(dy);
    CHECK(same_bits(rows.grad().to_dense(), first));
  }
}

TEST_CASE("a row-sparse gradient is the dense one's rows") {
  const Tensor indices = from_vector<int64_t>({3, 0, 3, 3, 1, 0}, {2, 3});
  const auto sparse = [](const Tensors& in) { return embedding(in[0], in[1], {.sparse = true}); };
  check_gradients(sparse, {indices, leaf({5, 3}, 1)});
  check_gradients(sparse, {indices, strided(random({5, 3}, 1)).requires_grad_()});
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const Tensor dy = random({2, 3, 70}, 2, dtype);
    for (EmbeddingOptions options :
         {EmbeddingOptions{}, EmbeddingOptions{.padding_idx = 3},
          EmbeddingOptions{.padding_idx = -1}, EmbeddingOptions{.scale_grad_by_freq = true}}) {
      const Tensor dense = random({5, 70}, 1, dtype).requires_grad_();
      const Tensor rows = random({5, 70}, 1, dtype).requires_grad_();
      embedding(indices, dense, options).backward(dy);
      options.sparse = true;
      embedding(indices, rows, options).backward(dy);
      CHECK(!dense.grad().is_sparse());
      CHECK(rows.grad().is_sparse());
      CHECK(
          rows.grad().rows().to_vector<int64_t>() ==
          (options.padding_idx == 3 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0, 1, 3}));
      CHECK(same_bits(rows.grad().to_dense(), dense.grad()));
    }
  }
  const Tensor none = random({5, 3}, 1).requires_grad_();
  embedding(zeros({0}, DType::i64), none, {.sparse = true}).backward(zeros({0, 3}, DType::f64));
  CHECK(none.grad().rows().numel() == 0);
}

TEST_CASE("gradients divided by how often a row is there") {
  const Tensor weight = zeros({3, 2}).requires_grad_();
  embedding(from_vector<int64_t>({2, 0, 2, 2, 2}), weight, {.scale_grad_by_freq = true})
      .backward(from_vector<float>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {5, 2}));
  CHECK(weight.grad().to_vector<float>() == std::vector<float>{3, 4, 0, 0, 5.5, 6.5});
}

TEST_CASE("rows that are looked up are scaled to max_norm, others left alone") {
  for (const bool by_columns : {false, true}) {
    const Tensor values = from_vector<double>({3, 4, 30, 40, 0.3, 0.4}, {3, 2});
    const Tensor weight = by_columns ? strided(values) : values;
    const uint64_t before = weight.version();
    const Tensor y = embedding(from_vector<int64_t>({0, 2, 0}), weight, {.max_norm = 1});
    CHECK(weight.version() == before + 1);
    const double by = 1 / (5 + 1e-7);
    const Tensor expected = from_vector<double>({3 * by, 4 * by, 30, 40, 0.3, 0.4}, {3, 2});
    CHECK(max_abs_difference(weight, expected) < 1e-15);
    CHECK(same_bits(raw::select(y, 0, 2), raw::contiguous(raw::select(weight, 0, 0))));
  }
  for (const auto& [p, norm] : {std::pair{1.0, 7.0}, {INFINITY, 4.0}, {3.0, std::cbrt(91.0)}}) {
    const Tensor weight = from_vector<double>({3, 4}, {1, 2});
    embedding(from_vector<int64_t>({0}), weight, {.max_norm = 2, .norm_type = p});
    CHECK(std::abs(weight.to_vector<double>()[0] - 3 * 2 / (norm + 1e-7)) < 1e-14);
  }
}

TEST_CASE("gradients that are not finite, and rows without elements") {
  const Tensor weight = zeros({4, 2}).requires_grad_();
  embedding(from_vector<int64_t>({1, 3}), weight, {.sparse = true})
      .backward(from_vector<float>({NAN, 1, INFINITY, 2}, {2, 2}));
  const auto grad = weight.grad().to_dense().to_vector<float>();
  CHECK(std::isnan(grad[2]));
  CHECK(grad[6] == INFINITY);
  CHECK(grad[0] == 0);
  const Tensor narrow = zeros({4, 0}).requires_grad_();
  embedding(from_vector<int64_t>({1, 3}), narrow, {.sparse = true}).backward(zeros({2, 0}));
  CHECK(narrow.grad().rows().numel() == 2);
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
  CHECK_THROWS_WITH_AS(embedding(indices, weight, {.max_norm = -1.0}),
                       "[embedding] max_norm: expected at least 0, got -1", Error);
  CHECK_THROWS_WITH_AS(embedding(indices, weight, {.norm_type = 0}),
                       "[embedding] norm_type: expected more than 0, got 0", Error);
}
