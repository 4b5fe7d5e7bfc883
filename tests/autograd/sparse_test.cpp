// Row-sparse gradients: what they are, what they add up to, and that nothing else takes them.
#include "gradcheck_helper.h"
#include "quern/autograd/node.h"
#include "quern/ops/binary.h"
#include "quern/ops/embedding.h"
#include "quern/ops/sum.h"
#include "quern/ops/unary.h"

using namespace quern;
using namespace quern::test;

namespace {

Tensor rows_of(const std::vector<int64_t>& rows, int64_t size, uint64_t seed,
               DType dtype = DType::f32) {
  return sparse_rows(from_vector(rows), random({static_cast<int64_t>(rows.size()), 3}, seed, dtype),
                     size);
}

/// Adds row-sparse (or dense) gradients up in a leaf as backward passes would.
Tensor accumulated(const Tensors& grads, DType dtype = DType::f32) {
  Tensor leaf = zeros(grads[0].shape(), dtype).requires_grad_();
  for (const Tensor& grad : grads)
    record("toy", zeros({}, DType::f32), {leaf}, [grad](const Tensor&, Needs) -> Tensors {
      return {grad};
    }).backward();
  return leaf.grad();
}

}  // namespace

TEST_CASE("a row-sparse tensor") {
  const Tensor t = rows_of({1, 3}, 5, 1);
  CHECK(t.is_sparse());
  CHECK(!t.values().is_sparse());
  CHECK(t.shape() == Shape{5, 3});
  CHECK(t.numel() == 15);
  CHECK(t.describe() == "f32 [5,3] row-sparse, 2 rows");
  const Tensor dense = t.to_dense();
  CHECK(same_bits(raw::select(dense, 0, 3), raw::select(t.values(), 0, 1)));
  CHECK(same_bits(raw::select(dense, 0, 0), zeros({3})));
  CHECK(dense.to_dense().is_same(dense));
  CHECK(rows_of({}, 5, 1).to_dense().to_vector<float>() == std::vector<float>(15));
}

TEST_CASE("prints as PyTorch's does") {
  const auto text = [](const Tensor& t) { return to_string(t); };
  CHECK(text(sparse_rows(from_vector<int64_t>({0, 2}), from_vector<float>({1, 1, 2, 2}, {2, 2}),
                         4)) ==
        "tensor(indices=tensor([[0, 2]]),\n"
        "       values=tensor([[1., 1.],\n"
        "                      [2., 2.]]),\n"
        "       size=(4, 2), nnz=2, layout=torch.sparse_coo)");
  CHECK(text(sparse_rows(zeros({0}, DType::i64), zeros({0, 2}, DType::f64), 4)) ==
        "tensor(indices=tensor([], size=(1, 0)),\n"
        "       values=tensor([], size=(0, 2)),\n"
        "       size=(4, 2), nnz=0, dtype=torch.float64, layout=torch.sparse_coo)");
}

TEST_CASE("row-sparse gradients add up") {
  const Tensor a = rows_of({0, 2, 4}, 6, 1), b = rows_of({2, 3}, 6, 2), none = rows_of({}, 6, 3);
  const Tensor dense = random({6, 3}, 4, DType::f32);
  const auto sum = [](const Tensor& x, const Tensor& y) { return add(x.to_dense(), y.to_dense()); };
  const Tensor both = accumulated({a, b});
  CHECK(both.is_sparse());
  CHECK(both.rows().to_vector<int64_t>() == std::vector<int64_t>{0, 2, 3, 4});
  CHECK(same_bits(both.to_dense(), sum(a, b)));
  CHECK(same_bits(accumulated({none, b}).to_dense(), b.to_dense()));
  for (const Tensors& mixed : {Tensors{a, dense}, Tensors{dense, a}}) {
    const Tensor grad = accumulated(mixed);
    CHECK(!grad.is_sparse());
    CHECK(same_bits(grad, sum(a, dense)));
  }
  // What went in is as it was: another holder may see it.
  CHECK(a.rows().numel() == 3);
  CHECK(same_bits(a.values(), random({3, 3}, 1, DType::f32)));

  const Tensor lowered = accumulated({a, b}, DType::bf16);
  CHECK(lowered.is_sparse());
  CHECK(lowered.dtype() == DType::bf16);
}

TEST_CASE("two consumers of a leaf, and hooks") {
  const Tensor weight = random({6, 3}, 1, DType::f32).requires_grad_();
  const auto look_up = [&](const std::vector<int64_t>& at) {
    return sum(embedding(from_vector(at), weight, {.sparse = true}));
  };
  int calls = 0;
  weight.register_hook([&](const Tensor& grad) {
    ++calls;
    CHECK(grad.is_sparse());
    return sparse_rows(grad.rows(), full(grad.values().shape(), 7), 6);
  });
  add(look_up({5, 1}), look_up({1, 0})).backward();
  CHECK(calls == 1);
  CHECK(weight.grad().rows().to_vector<int64_t>() == std::vector<int64_t>{0, 1, 5});
  CHECK(weight.grad().values().to_vector<float>() == std::vector<float>(9, 7));
}

TEST_CASE("who meets a row-sparse tensor says so") {
  const Tensor t = rows_of({1, 3}, 5, 1);
  const char* const refusal =
      "[tensor] tensor: expected a dense one, got f32 [5,3] row-sparse, 2 rows; to_dense() makes "
      "it";
  CHECK_THROWS_WITH_AS(t.data_ptr(), refusal, Error);
  CHECK_THROWS_WITH_AS(t.strides(), refusal, Error);
  CHECK_THROWS_WITH_AS(t.storage(), refusal, Error);
  const auto names = [](const std::string& argument) {
    return argument +
           ": expected a dense tensor, got f32 [5,3] row-sparse, 2 rows; to_dense() "
           "makes it one";
  };
  CHECK_THROWS_WITH_AS(t.to_vector<float>(), names("[to] tensor").c_str(), Error);
  CHECK_THROWS_WITH_AS(add(t, t), names("[add] a").c_str(), Error);
  CHECK_THROWS_WITH_AS(sum(t), names("[sum] x").c_str(), Error);
  CHECK_THROWS_WITH_AS(raw::clone(t), names("[clone] tensor").c_str(), Error);
  CHECK_THROWS_WITH_AS(ones({2}).rows(), "[tensor] tensor: expected a row-sparse one, got f32 [2]",
                       Error);
  CHECK_THROWS_AS(Tensor().values(), Error);

  const Tensor leaf = random({5, 3}, 1, DType::f32).requires_grad_();
  const Tensor y = embedding(from_vector<int64_t>({1}), neg(leaf), {.sparse = true});
  CHECK_THROWS_WITH_AS(sum(y).backward(),
                       "[neg] backward: expected a dense gradient, got f32 [5,3] row-sparse, 1 "
                       "rows: what embedding(..., {.sparse = true}) looks up has to be a leaf",
                       Error);
  CHECK(!leaf.grad().defined());
}

TEST_CASE("what sparse_rows refuses") {
  const Tensor values = zeros({2, 3});
  CHECK_THROWS_WITH_AS(sparse_rows(from_vector<int64_t>({1, 1}), values, 5),
                       "[sparse_rows] rows: expected rising numbers in 0..4, got 1 as element 1",
                       Error);
  CHECK_THROWS_AS(sparse_rows(from_vector<int64_t>({1, 5}), values, 5), Error);
  CHECK_THROWS_AS(sparse_rows(from_vector<int64_t>({-1, 2}), values, 5), Error);
  CHECK_THROWS_WITH_AS(sparse_rows(from_vector<int64_t>({1}), values, 5),
                       "[sparse_rows] values: expected a floating tensor of 1 rows, got f32 [2,3]",
                       Error);
  CHECK_THROWS_AS(sparse_rows(zeros({2}), values, 5), Error);
}
