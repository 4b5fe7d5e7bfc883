#include "quern/ops/linear.h"

#include <doctest/doctest.h>

#include <cfloat>

#include "gradcheck_helper.h"
#include "kernels/best_gemm.h"
#include "ops/captured_output.h"
#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/verbose.h"
#include "tensor/threads.h"

using namespace quern;
using test::leaf;
using test::random;

namespace {

/// Σ_p a[i, p]·b[j, p] (+ bias[j]) for the rows i of a and j of b, against `got`. Every term meets
/// at most k + 2 roundings of the accumulator; bf16 is rounded once more.
void check_rows(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& got) {
  const auto x = a.to_vector<double>(), w = b.to_vector<double>();
  const auto y = got.to_vector<double>();
  const auto k = static_cast<size_t>(a.size(-1)), n = static_cast<size_t>(b.size(0));
  const std::vector<double> add =
      bias.defined() ? bias.to_vector<double>() : std::vector<double>(n);
  REQUIRE(y.size() * k == x.size() * n);
  const double u = got.dtype() == DType::f64 ? DBL_EPSILON : FLT_EPSILON / 2;
  const double roundings = static_cast<double>(k + 2);
  int64_t wrong = 0;
  for (size_t at = 0; at < y.size(); ++at) {
    const size_t i = at / n, j = at % n;
    double sum = add[j], magnitude = std::fabs(add[j]);
    for (size_t p = 0; p < k; ++p) {
      const double term = x[i * k + p] * w[j * k + p];
      sum += term, magnitude += std::fabs(term);
    }
    double bound = roundings * u / (1 - roundings * u) * magnitude;
    if (got.dtype() == DType::bf16) bound += 0x1p-8 * (std::fabs(sum) + bound);
    wrong += !(std::fabs(y[at] - sum) <= bound);
  }
  INFO("a ", a.describe(), " b ", b.describe());
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("linear is x·weightᵀ + bias") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{7}, {1, 64}, {5, 33}, {2, 3, 70}, {35, 1000}, {2, 0, 4}}) {
      const int64_t out = 37;
      const Tensor x = random(shape, 1, dtype), weight = random({out, shape.back()}, 2, dtype);
      const Tensor bias = random({out}, 3, dtype);
      Shape expected = shape;
      expected[shape.size() - 1] = out;
      const Tensor y = linear(x, weight, bias);
      CHECK(y.shape() == expected);
      CHECK(y.dtype() == dtype);
      check_rows(x, weight, bias, y);
      check_rows(x, weight, Tensor(), linear(x, weight));
      check_rows(x, weight, bias,
                 linear(test::strided(x), test::strided(weight), test::strided(bias)));
    }
  }
}

TEST_CASE("linear takes rows that are one, forward and backward") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor row = random({1, 64}, 1, dtype), wide = random({37, 64}, 2, dtype);
    for (const Tensor& w : {wide, raw::expand(raw::slice(wide, 0, 3, 4), {37, 64})}) {
      Tensor x = raw::alias(raw::expand(row, {8, 64})).requires_grad_();
      Tensor weight = raw::alias(w).requires_grad_();
      check_rows(x, weight, Tensor(), linear(x, weight));
      const Tensor dy = raw::expand(random({1, 37}, 3, dtype), {8, 37});
      linear(x, weight).backward(dy);
      check_rows(dy, raw::transpose(weight, 0, 1), Tensor(), x.grad());
      check_rows(raw::transpose(dy, 0, 1), raw::transpose(x, 0, 1), Tensor(), weight.grad());
    }
  }
}

TEST_CASE("linear's gradients") {
  const auto f = [](const Tensors& in) {
    return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor());
  };
  test::check_gradients(f, {leaf({4, 5}, 1), leaf({3, 5}, 2), leaf({3}, 3)});
  test::check_gradients(f, {leaf({2, 3, 5}, 1), leaf({4, 5}, 2), leaf({4}, 3)});
  test::check_gradients(f, {leaf({5}, 1), leaf({3, 5}, 2)});
}

TEST_CASE("linear's gradients in f32 and bf16") {
  const int64_t rows = 45, in = 70, out = 33;
  for (DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = random({rows, in}, 1, dtype), weight = random({out, in}, 2, dtype);
    Tensor bias = random({out}, 3, dtype);
    x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_();
    const Tensor dy = random({rows, out}, 4, dtype);
    linear(x, weight, bias).backward(dy);
    const auto t = [](const Tensor& m) { return raw::contiguous(raw::transpose(m, 0, 1)); };
    check_rows(dy, t(weight), Tensor(), x.grad());
    check_rows(t(dy), t(x), Tensor(), weight.grad());
    check_rows(ones({1, rows}, dtype), t(dy), Tensor(), bias.grad());
  }
}

TEST_CASE("linear without rows or without inputs") {
  CHECK(linear(empty({2, 0}), empty({3, 0}), ones({3})).to_vector<double>() ==
        std::vector<double>(6, 1.0));
  Tensor weight = random({3, 4}, 1, DType::f32).requires_grad_();
  Tensor bias = random({3}, 2, DType::f32).requires_grad_();
  linear(empty({0, 4}), weight, bias).backward(empty({0, 3}));
  CHECK(weight.grad().to_vector<double>() == std::vector<double>(12, 0.0));
  CHECK(bias.grad().to_vector<double>() == std::vector<double>(3, 0.0));
}

TEST_CASE("linear sees a weight that was changed in place") {
  const Tensor x = random({4, 6}, 1, DType::f32), weight = random({5, 6}, 2, DType::f32);
  for (int pass = 0; pass < 3; ++pass) check_rows(x, weight, Tensor(), linear(x, weight));
  raw::fill_(weight, 0.25);
  for (int pass = 0; pass < 3; ++pass) check_rows(x, weight, Tensor(), linear(x, weight));
}

TEST_CASE("linear under autocast computes in bf16 and gives f32 gradients") {
  Tensor x = random({4, 8}, 1, DType::f32).requires_grad_();
  Tensor weight = random({3, 8}, 2, DType::f32).requires_grad_();
  Tensor bias = random({3}, 3, DType::f32).requires_grad_();
  const AutocastGuard autocast;
  const Tensor y = linear(x, weight, bias);
  CHECK(y.dtype() == DType::bf16);
  check_rows(raw::to(x, DType::bf16), raw::to(weight, DType::bf16), bias, y);
  y.backward(ones_like(y));
  for (const Tensor& t : {x, weight, bias}) CHECK(t.grad().dtype() == DType::f32);
}

TEST_CASE("linear gives the same bits for any number of threads") {
  const test::Threads kept;
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Tensor x = random({130, 300}, 1, DType::f32).requires_grad_();
    Tensor weight = random({140, 300}, 2, DType::f32).requires_grad_();
    Tensor bias = random({140}, 3, DType::f32).requires_grad_();
    const Tensor y = linear(x, weight, bias);
    y.backward(random({130, 140}, 4, DType::f32));
    std::vector<float> all = y.to_vector<float>();
    for (const Tensor& t : {x, weight, bias})
      for (float value : t.grad().to_vector<float>()) all.push_back(value);
    results.push_back(all);
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("linear says which kernel ran, and it is the one that the cap allows") {
  test::each_cap(test::kGemmIsas, kernels::table<kernels::GemmKernel>(), [](Isa isa) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      set_verbosity(Verbosity::ops);
      const std::string line = test::captured_output([&] {
        linear(zeros({2, 6}, dtype), zeros({3, 6}, dtype));
      });
      set_verbosity(Verbosity::off);
      const std::string expected = fmt::format("quern_verbose,linear_fwd,{},m2n3k6,{}:{}:{},",
                                               test::best_gemm(isa, dtype), dtype, dtype, dtype);
      CHECK_MESSAGE(line.starts_with(expected), line);
    }
  });
}

TEST_CASE("linear refuses what does not fit") {
  const Tensor x = zeros({2, 3}), weight = zeros({4, 3});
  CHECK_THROWS_WITH_AS(linear(Tensor(), weight),
                       "[linear] x: expected a floating tensor [..., in], got undefined", Error);
  CHECK_THROWS_WITH_AS(linear(full({}, 1), weight),
                       "[linear] x: expected a floating tensor [..., in], got f32 []", Error);
  CHECK_THROWS_WITH_AS(linear(zeros({2, 3}, DType::i64), weight),
                       "[linear] x: expected a floating tensor [..., in], got i64 [2,3]", Error);
  CHECK_THROWS_WITH_AS(linear(x, zeros({3})), "[linear] weight: expected [out, in], got f32 [3]",
                       Error);
  CHECK_THROWS_WITH_AS(linear(x, zeros({3, 4})),
                       "[linear] weight: expected f32 [out, 3], got f32 [3,4]; x f32 [2,3]", Error);
  CHECK_THROWS_WITH_AS(linear(x, zeros({4, 3}, DType::f64)),
                       "[linear] weight: expected f32 [out, 3], got f64 [4,3]; x f32 [2,3]", Error);
  CHECK_THROWS_WITH_AS(linear(x, weight, zeros({3})),
                       "[linear] bias: expected f32 [4], got f32 [3]; weight f32 [4,3]", Error);
  CHECK_THROWS_WITH_AS(linear(x, weight, zeros({4}, DType::bf16)),
                       "[linear] bias: expected f32 [4], got bf16 [4]; weight f32 [4,3]", Error);
}
