#include "quern/ops/matmul.h"

#include <doctest/doctest.h>

#include <cfloat>

#include "gradcheck_helper.h"
#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/permute.h"

using namespace quern;
using test::leaf;
using test::random;

namespace {

/// matmul by its definition, in f64, and Σ|terms|.
struct Naive {
  std::vector<double> value, magnitude;

  Naive(const Tensor& a_any, const Tensor& b_any) {
    const Tensor a = a_any.dim() == 1 ? raw::unsqueeze(a_any, 0) : a_any;
    const Tensor b = b_any.dim() == 1 ? raw::unsqueeze(b_any, -1) : b_any;
    const auto batch = [](const Tensor& t) {
      return Shape(std::span(t.shape().begin(), static_cast<size_t>(t.dim() - 2)));
    };
    Shape all = broadcast_shapes("test", batch(a), batch(b));
    const auto expanded = [&](const Tensor& t) {
      Shape shape = all;
      shape.push_back(t.size(-2)), shape.push_back(t.size(-1));
      return raw::expand(t, shape).to_vector<double>();
    };
    const std::vector<double> x = expanded(a), y = expanded(b);
    const auto m = static_cast<size_t>(a.size(-2)), k = static_cast<size_t>(a.size(-1)),
               n = static_cast<size_t>(b.size(-1));
    for (size_t l = 0; l < static_cast<size_t>(numel(all)); ++l)
      for (size_t i = 0; i < m; ++i)
        for (size_t j = 0; j < n; ++j) {
          double sum = 0, magnitudes = 0;
          for (size_t p = 0; p < k; ++p) {
            const double term = x[(l * m + i) * k + p] * y[(l * k + p) * n + j];
            sum += term, magnitudes += std::fabs(term);
          }
          value.push_back(sum), magnitude.push_back(magnitudes);
        }
  }
};

/// Every term meets at most k + 1 roundings of the accumulator (f64: the oracle errs as much); bf16
/// is rounded once more.
void check_product(const Tensor& a, const Tensor& b, const Tensor& y) {
  const Naive expected(a, b);
  const std::vector<double> got = y.to_vector<double>();
  REQUIRE(got.size() == expected.value.size());
  const double u = y.dtype() == DType::f64 ? DBL_EPSILON : FLT_EPSILON / 2;
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double n = static_cast<double>(a.size(-1) + 1);
    double bound = n * u / (1 - n * u) * expected.magnitude[i];
    if (y.dtype() == DType::bf16) bound += 0x1p-8 * (std::fabs(expected.value[i]) + bound);
    wrong += !(std::fabs(got[i] - expected.value[i]) <= bound);
  }
  INFO("a ", a.describe(), " b ", b.describe());
  CHECK(wrong == 0);
}

struct Shapes {
  Shape a, b, y;
};
const Shapes kShapes[] = {
    {{5, 7}, {7, 6}, {5, 6}},
    {{40, 70}, {70, 33}, {40, 33}},
    {{7}, {7}, {}},
    {{7}, {7, 3}, {3}},
    {{3, 7}, {7}, {3}},
    {{4, 3, 7}, {7}, {4, 3}},
    {{7}, {4, 7, 3}, {4, 3}},
    {{4, 3, 7}, {7, 5}, {4, 3, 5}},
    {{3, 7}, {4, 7, 5}, {4, 3, 5}},
    {{4, 3, 7}, {4, 7, 5}, {4, 3, 5}},
    {{2, 1, 5, 7}, {3, 7, 6}, {2, 3, 5, 6}},
    {{2, 3, 1, 7}, {1, 3, 7, 2}, {2, 3, 1, 2}},
    {{2, 1, 3, 2, 4}, {2, 1, 4, 2}, {2, 2, 3, 2, 2}},
    {{1, 1, 2, 3}, {3, 4}, {1, 1, 2, 4}},
};

}  // namespace

TEST_CASE("matmul multiplies and broadcasts as its formula says") {
  for (const Shapes& shapes : kShapes) {
    for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Tensor a = random(shapes.a, 1, dtype), b = random(shapes.b, 2, dtype);
      const Tensor y = matmul(a, b);
      CHECK(y.shape() == shapes.y);
      CHECK(y.dtype() == dtype);
      check_product(a, b, y);
      check_product(a, b, matmul(test::strided(a), test::strided(b)));
    }
  }
}

TEST_CASE("matmul's gradients") {
  for (const Shapes& shapes : kShapes) {
    if (numel(shapes.a) > 200) continue;  // gradcheck runs the op twice an element
    test::check_gradients([](const Tensors& in) { return matmul(in[0], in[1]); },
                          {leaf(shapes.a, 1), leaf(shapes.b, 2)});
  }
  // Permuted operands: transposes without a copy.
  test::check_gradients(
      [](const Tensors& in) {
        return matmul(permute(in[0], {0, 2, 1}), in[1]);
      },
      {leaf({2, 4, 3}, 1), leaf({4, 5}, 2)});
}

TEST_CASE("matmul of f32 and bf16 has the gradients of f64 within rounding") {
  // da = dy·bᵀ and db = aᵀ·dy of the same (rounded) inputs; dy is one everywhere.
  for (DType dtype : {DType::f32, DType::bf16}) {
    Tensor a = random({3, 20, 30}, 1, dtype), b = random({30, 40}, 2, dtype);
    a.requires_grad_(), b.requires_grad_();
    const Tensor dy = ones({3, 20, 40}, dtype);
    matmul(a, b).backward(dy);
    check_product(dy, raw::transpose(raw::to(b, dtype), 0, 1), a.grad());
    const Tensor columns = raw::reshape(raw::to(a, dtype), {60, 30});
    check_product(raw::transpose(columns, 0, 1), raw::reshape(dy, {60, 40}), b.grad());
  }
}

TEST_CASE("matmul multiplies rows that are one, and that overlap") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor a = random({5, 64}, 1, dtype), row = random({1, 64}, 2, dtype);
    const Tensor column = raw::transpose(row, 0, 1);
    for (const Tensor& b : {raw::expand(row, {64, 64}), raw::expand(column, {64, 64}),
                            raw::expand(raw::slice(row, 1, 0, 1), {64, 64}),
                            raw::as_strided(random({200}, 3, dtype), {64, 64}, {2, 1}, 5),
                            raw::as_strided(random({200}, 3, dtype), {64, 64}, {1, 2}, 5)}) {
      check_product(a, b, matmul(a, b));
      check_product(b, raw::transpose(a, 0, 1), matmul(b, raw::transpose(a, 0, 1)));
      Tensor x = raw::clone(a).requires_grad_(), y = random({64, 64}, 4, dtype).requires_grad_();
      const Tensor dz = raw::slice(b, 0, 0, 5);
      matmul(x, y).backward(dz);
      check_product(dz, raw::transpose(y, 0, 1), x.grad());
      check_product(raw::transpose(x, 0, 1), dz, y.grad());
    }
  }
}

TEST_CASE("matmul of nothing") {
  CHECK(matmul(empty({0, 3}), empty({3, 2})).shape() == Shape{0, 2});
  CHECK(matmul(empty({0, 2, 3}), empty({3, 2})).shape() == Shape{0, 2, 2});
  CHECK(matmul(empty({2, 0}), empty({0, 2})).to_vector<double>() == std::vector<double>(4, 0.0));
  Tensor b = random({3, 2}, 1, DType::f32).requires_grad_();
  matmul(empty({0, 2, 3}), b).backward(empty({0, 2, 2}));
  CHECK(b.grad().to_vector<double>() == std::vector<double>(6, 0.0));
}

TEST_CASE("matmul under autocast computes in bf16") {
  Tensor a = random({4, 8}, 1, DType::f32).requires_grad_(), b = random({8, 3}, 2, DType::f32);
  const AutocastGuard autocast;
  const Tensor y = matmul(a, b);
  CHECK(y.dtype() == DType::bf16);
  check_product(raw::to(a, DType::bf16), raw::to(b, DType::bf16), y);
  y.backward(ones_like(y));
  CHECK(a.grad().dtype() == DType::f32);
  CHECK(matmul(random({2, 2}, 1), random({2, 2}, 2)).dtype() == DType::f64);
}

TEST_CASE("matmul refuses what does not fit") {
  const Tensor a = zeros({2, 3});
  CHECK_THROWS_WITH_AS(matmul(Tensor(), a),
                       "[matmul] a: expected a floating tensor [..., m, k] or [k], got undefined",
                       Error);
  CHECK_THROWS_WITH_AS(matmul(zeros({2, 3}, DType::i64), a),
                       "[matmul] a: expected a floating tensor [..., m, k] or [k], got i64 [2,3]",
                       Error);
  CHECK_THROWS_WITH_AS(matmul(a, full({}, 1)),
                       "[matmul] b: expected a tensor [..., k, n] or [k], got f32 []", Error);
  CHECK_THROWS_WITH_AS(matmul(a, zeros({2, 4})),
                       "[matmul] b: expected f32 with 3 rows, got f32 [2,4]; a f32 [2,3]", Error);
  CHECK_THROWS_WITH_AS(matmul(a, zeros({3, 4}, DType::f64)),
                       "[matmul] b: expected f32 with 3 rows, got f64 [3,4]; a f32 [2,3]", Error);
  CHECK_THROWS_AS(matmul(zeros({2, 2, 3}), zeros({3, 3, 2})), Error);
}
