// layer_norm against a direct formula in f64, by gradcheck, and its errors.
#include "quern/ops/layer_norm.h"

#include <doctest/doctest.h>

#include "gradcheck_helper.h"
#include "quern/ops/autocast.h"

using namespace quern;
using namespace quern::test;

namespace {

Tensor direct(const Tensor& x, int64_t columns, const Tensor& weight, const Tensor& bias,
              double eps) {
  auto values = x.to_vector<double>();
  const auto w = weight.to_vector<double>(), b = bias.to_vector<double>();
  const size_t n = static_cast<size_t>(columns);
  for (size_t row = 0; row < values.size(); row += n) {
    double mean = 0, var = 0;
    for (size_t i = 0; i < n; ++i) mean += values[row + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i)
      var += (values[row + i] - mean) * (values[row + i] - mean) / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i)
      values[row + i] = (values[row + i] - mean) / std::sqrt(var + eps) * w[i] + b[i];
  }
  return from_vector(values, x.shape());
}

}  // namespace

TEST_CASE("layer_norm normalises the last dimensions") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Shape& tail : {Shape{35}, Shape{7, 35}}) {
      const DType parameter = dtype == DType::f64 ? DType::f64 : DType::f32;
      const Tensor x = random({4, 7, 35}, 1, dtype);
      const Tensor weight = random(tail, 2, parameter), bias = random(tail, 3, parameter);
      const Tensor expected = direct(x, numel(tail), weight, bias, 1e-3);
      // |h·weight| < 2 and |bias| < 1: sums of 245 at most in the lanes, then a few roundings.
      const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
      const double bound = 64 * u + (dtype == DType::bf16 ? 0x1p-8 * 2 : 0);
      const Tensor y = layer_norm(x, tail, weight, bias, 1e-3);
      CHECK(y.dtype() == dtype);
      CHECK_LE(max_abs_difference(y, expected), bound);
      CHECK_LE(
          max_abs_difference(layer_norm(strided(x), tail, strided(weight), bias, 1e-3), expected),
          bound);
    }
}

TEST_CASE("gradients of layer_norm") {
  for (const Shape& tail : {Shape{5}, Shape{3, 5}}) {
    check_gradients([&](const Tensors& in) { return layer_norm(in[0], tail, in[1], in[2]); },
                    {leaf({2, 3, 5}, 1), leaf(tail, 2), leaf(tail, 3)});
    check_gradients([&](const Tensors& in) { return layer_norm(in[0], tail); },
                    {leaf({2, 3, 5}, 1)});
    check_gradients(
        [&](const Tensors& in) {
          return layer_norm(random({2, 3, 5}, 1), tail, {}, in[0]);
        },
        {leaf(tail, 3)});
  }
}

TEST_CASE("gradients of layer_norm in f32 and bf16 follow those in f64") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random({50, 40}, 1, dtype), dy = random({50, 40}, 2, dtype);
    const Tensor w = random({40}, 3, DType::f32);
    const auto gradients = [&](DType to) {
      Tensor xx = raw::clone(raw::to(x, to));
      Tensor ww = raw::clone(raw::to(w, to == DType::f64 ? DType::f64 : DType::f32));
      xx.requires_grad_(), ww.requires_grad_();
      layer_norm(xx, {40}, ww).backward(raw::to(dy, to));
      return Tensors{xx.grad(), ww.grad()};
    };
    const Tensors got = gradients(dtype), expected = gradients(DType::f64);
    CHECK(got[0].dtype() == dtype);
    CHECK(got[1].dtype() == DType::f32);
    // dx: sums of 40, three terms, one rounding on store; dweight sums 50 products in f32.
    CHECK_LE(relative_difference(got[0], expected[0]),
             dtype == DType::bf16 ? 0x1p-8 : 40 * 0x1p-24);
    CHECK_LE(relative_difference(got[1], expected[1]), 50 * 0x1p-24);
  }
}

TEST_CASE("layer_norm of a constant is the bias, wherever it lies") {
  for (DType dtype : {DType::f32, DType::f64})
    for (double value : {1e6, -1234567.875, 3e-3}) {
      const Tensor x = full({3, 5001}, value, dtype), bias = random({5001}, 1, dtype);
      CHECK(max_abs_difference(layer_norm(x, {5001}, {}, bias), raw::expand(bias, x.shape())) == 0);
    }
}

TEST_CASE("layer_norm in f32 and its gradients are as exact far from zero as near it") {
  constexpr double mean = 1e6, u = 0x1p-24;
  constexpr int64_t columns = 16;
  const Tensor x =
      random({40, columns}, 1, DType::f32, MemoryFormat::contiguous, mean - 1, mean + 1);
  const Tensor w = random({columns}, 2, DType::f32), b = random({columns}, 3, DType::f32);
  const Tensor dy = random(x.shape(), 4, DType::f32, MemoryFormat::contiguous, -0.5, 1);
  const auto results = [&](DType to) {
    Tensor xx = raw::clone(raw::to(x, to)), ww = raw::clone(raw::to(w, to));
    xx.requires_grad_(), ww.requires_grad_();
    const Tensor y = layer_norm(xx, {columns}, ww, raw::to(b, to));
    y.backward(raw::to(dy, to));
    return Tensors{y.detach(), xx.grad(), ww.grad()};
  };
  const Tensors got = results(DType::f32), expected = results(DType::f64);
  // The kernels' pivot is off by (n+8)·u·mean, the mean and the deviation by (n+8)·u of the
  // distances from it: of these the variances, all over 0.1, are made.
  const double sums = (columns + 8) * u, pivot = sums * mean;
  const double statistics = 2 * sums * (1 + pivot * pivot / 0.1);
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK_LE(relative_difference(got[i], expected[i]), 60 * u + 2 * statistics);
  }
}

TEST_CASE("layer_norm under autocast keeps the dtype of x") {
  const AutocastGuard guard;
  CHECK(layer_norm(random({2, 4}, 1, DType::f32), {4}).dtype() == DType::f32);
  CHECK(layer_norm(random({2, 4}, 1, DType::bf16), {4}).dtype() == DType::bf16);
}

TEST_CASE("layer_norm takes parameters of bf16, in f32") {
  const Tensor x = random({3, 4}, 1, DType::bf16);
  Tensor w = random({4}, 2, DType::bf16).requires_grad_(), b = random({4}, 3, DType::bf16);
  Tensor wide = raw::to(w, DType::f32).requires_grad_();
  const Tensor y = layer_norm(x, {4}, w, b),
               same = layer_norm(x, {4}, wide, raw::to(b, DType::f32));
  CHECK(test::same_bits(y, same));
  y.backward(ones_like(y)), same.backward(ones_like(same));
  CHECK(test::same_bits(w.grad(), raw::to(wide.grad(), DType::bf16)));
  CHECK_THROWS_AS(layer_norm(raw::to(x, DType::f32), {4}, w), Error);
}

TEST_CASE("layer_norm refuses what it cannot do") {
  const Tensor x = random({2, 3, 4}, 1, DType::f32);
  CHECK_THROWS_WITH_AS(layer_norm({}, {4}),
                       "[layer_norm] x: expected a floating, non-empty tensor, got undefined",
                       Error);
  CHECK_THROWS_WITH_AS(layer_norm(zeros({0, 4}), {4}),
                       "[layer_norm] x: expected a floating, non-empty tensor, got f32 [0,4]",
                       Error);
  CHECK_THROWS_AS(layer_norm(ones({2, 4}, DType::i32), {4}), Error);
  CHECK_THROWS_WITH_AS(
      layer_norm(x, {3}),
      "[layer_norm] normalized_shape: expected the last sizes of x, at least one, got [3]; "
      "x f32 [2,3,4]",
      Error);
  CHECK_THROWS_AS(layer_norm(x, {}), Error);
  CHECK_THROWS_AS(layer_norm(x, {1, 2, 3, 4}), Error);
  CHECK_THROWS_WITH_AS(layer_norm(x, {4}, ones({3})),
                       "[layer_norm] weight: expected f32 [4], got f32 [3]; x f32 [2,3,4]", Error);
  CHECK_THROWS_WITH_AS(layer_norm(x, {4}, {}, ones({4}, DType::f64)),
                       "[layer_norm] bias: expected f32 [4], got f64 [4]; x f32 [2,3,4]", Error);
  CHECK_THROWS_AS(layer_norm(x, {4}, {}, {}, -1), Error);
}
