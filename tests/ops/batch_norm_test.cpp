// batch_norm against a direct formula in f64, by gradcheck, and its errors.
#include "quern/ops/batch_norm.h"

#include <doctest/doctest.h>

#include "gradcheck_helper.h"
#include "quern/ops/autocast.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

/// Element [n, c, ...] of a contiguous f64 copy belongs to channel (i / pixels) % channels.
struct Direct {
  explicit Direct(const Tensor& x)
      : values(x.to_vector<double>()),
        channels(x.size(1)),
        pixels(x.numel() / (x.size(0) * channels)),
        mean(static_cast<size_t>(channels)),
        var(mean),
        count(static_cast<double>(x.numel() / channels)) {
    for (size_t i = 0; i < values.size(); ++i) mean[channel(i)] += values[i] / count;
    for (size_t i = 0; i < values.size(); ++i) {
      const double d = values[i] - mean[channel(i)];
      var[channel(i)] += d * d / count;
    }
  }
  size_t channel(size_t i) const {
    return static_cast<size_t>(static_cast<int64_t>(i) / pixels % channels);
  }
  Tensor normalised(const Shape& shape, const Tensor& weight, const Tensor& bias,
                    double eps) const {
    const auto w = weight.to_vector<double>(), b = bias.to_vector<double>();
    std::vector<double> y(values.size());
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t c = channel(i);
      y[i] = (values[i] - mean[c]) / std::sqrt(var[c] + eps) * w[c] + b[c];
    }
    return from_vector(y, shape);
  }

  std::vector<double> values;
  int64_t channels, pixels;
  std::vector<double> mean, var;
  double count;
};

}  // namespace

TEST_CASE("batch_norm in training normalises and moves the running statistics") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (MemoryFormat format : kFormats) {
      const DType parameter = dtype == DType::f64 ? DType::f64 : DType::f32;
      const Tensor x = random({3, 19, 5, 7}, 1, dtype, format, -1, 3);
      const Tensor weight = random({19}, 2, parameter), bias = random({19}, 3, parameter);
      const Tensor mean = random({19}, 4, parameter), var = random({19}, 5, parameter);
      const auto mean_before = mean.to_vector<double>(), var_before = var.to_vector<double>();
      const uint64_t version = mean.version();

      const Tensor y = batch_norm(x, mean, var, weight, bias, true, 0.25, 1e-3);
      CHECK(y.dtype() == dtype);
      CHECK(y.format() == format);
      CHECK(mean.version() > version);
      const Direct direct(x);
      const Tensor expected = direct.normalised(x.shape(), weight, bias, 1e-3);
      // |x·scale| and |shift| are at most 4: a few roundings of the computation, one of the store.
      const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
      CHECK_LE(max_abs_difference(y, expected), 32 * u + (dtype == DType::bf16 ? 0x1p-8 * 4 : 0));
      for (size_t c = 0; c < 19; ++c) {
        const double m = 0.75 * mean_before[c] + 0.25 * direct.mean[c];
        const double v = 0.75 * var_before[c] + 0.25 * direct.var[c] * 105 / 104;
        CHECK_LE(std::abs(mean.to_vector<double>()[c] - m), 16 * u);
        CHECK_LE(std::abs(var.to_vector<double>()[c] - v), 64 * u);
      }
    }
}

TEST_CASE("batch_norm in evaluation uses the running statistics and leaves them") {
  for (MemoryFormat format : kFormats) {
    const Tensor x = random({2, 5, 3, 4}, 1, DType::f64, format);
    const Tensor mean = random({5}, 2),
                 var = random({5}, 3, DType::f64, MemoryFormat::contiguous, 0.5, 2);
    const Tensor weight = random({5}, 4), bias = random({5}, 5);
    const uint64_t version = var.version();
    Direct direct(x);
    direct.mean = mean.to_vector<double>(), direct.var = var.to_vector<double>();
    const Tensor y = batch_norm(x, mean, var, weight, bias, false);
    CHECK_LE(max_abs_difference(y, direct.normalised(x.shape(), weight, bias, 1e-5)), 1e-14);
    CHECK(var.version() == version);
  }
}

TEST_CASE("batch_norm takes any rank from 2 and any strides") {
  const Tensor weight = ones({3}, DType::f64), bias = zeros({3}, DType::f64);
  for (const Shape& shape :
       {Shape{7, 3}, Shape{4, 3, 5}, Shape{2, 3, 3, 2, 2}, Shape{2, 3, 1, 1}}) {
    const Tensor x = random(shape, 1);
    const Tensor expected = Direct(x).normalised(shape, weight, bias, 1e-5);
    CHECK_LE(max_abs_difference(batch_norm(x, {}, {}, {}, {}, true), expected), 1e-13);
    CHECK_LE(max_abs_difference(batch_norm(strided(x), {}, {}, {}, {}, true), expected), 1e-13);
  }
}

TEST_CASE("batch_norm of a large mean keeps its digits") {
  // x is 1e4 ± 1 with a rounding of u·1e4 = 6e-4: y may be off by a few of those, times
  // invstd = √3.
  for (MemoryFormat format : kFormats) {
    const Tensor x = random({8, 6, 9, 9}, 1, DType::f32, format, 1e4 - 1, 1e4 + 1);
    const Tensor y = batch_norm(x, {}, {}, {}, {}, true, 0.1, 0);
    const Tensor expected = Direct(x).normalised(x.shape(), ones({6}), zeros({6}), 0);
    CHECK_LE(max_abs_difference(y, expected), 2 * 1.7321 * 0x1p-24 * 1.0001e4);
  }
}

TEST_CASE("batch_norm of a constant is the bias, wherever it lies") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (MemoryFormat format : kFormats)
      for (const Shape& shape : {Shape{3, 5, 9, 7}, Shape{2, 70, 33, 35}, Shape{64, 19, 1, 1}})
        for (double value : {1e6, -1234567.875, 3e-3, 1e15}) {
          CAPTURE(to_string(dtype));
          CAPTURE(value);
          const Tensor x = empty(shape, dtype, format);
          raw::fill_(x, value);
          const double held = x.to_vector<double>()[0];
          const DType parameter = dtype == DType::f64 ? DType::f64 : DType::f32;
          const Shape channels{shape[1]};
          const Tensor weight = random(channels, 1, parameter),
                       bias = random(channels, 2, parameter);
          const Tensor expected =
              raw::to(raw::expand(raw::reshape(bias, {1, shape[1], 1, 1}), shape), dtype);
          for (bool training : {true, false}) {
            const Tensor mean = full(channels, held, parameter), var = zeros(channels, parameter);
            const Tensor y = batch_norm(x, mean, var, weight, bias, training);
            CHECK(max_abs_difference(y, expected) == 0);
          }
        }
}

namespace {

/// What batch_norm of n values a channel may be off where their mean is `mean`: the kernels' pivot
/// is off by gamma(n+1)·|mean|, the mean by the error of the distances from it, the variance by
/// that of their squares.
struct FarBound {
  static constexpr double u = 0x1p-24;
  FarBound(double n, double mean, double deviation)
      : pivot((n + 2) * u * mean),
        center((n + 3) * u * (deviation + pivot)),
        variance((2 * n + 9) * u * (1 + pivot * pivot / (deviation * deviation))) {}
  double pivot, center, variance;  // the last relative
};

/// f32 values within 1 of `mean`.
Tensor values_near(double mean, const Shape& shape, MemoryFormat format) {
  return random(shape, 1, DType::f32, format, mean - 1, mean + 1);
}
struct Far {
  double mean;
  Shape shape;
};
const std::vector<Far> kFar{{1e6, {2, 6, 2, 2}}, {1e6, {8, 37, 1, 1}}, {-1e5, {2, 19, 8, 8}}};

}  // namespace

TEST_CASE("batch_norm in f32 is as exact far from zero as near it") {
  for (const Far& far : kFar)
    for (MemoryFormat format : kFormats)
      for (bool training : {true, false}) {
        CAPTURE(far.mean);
        CAPTURE(training);
        const Shape channels{far.shape[1]};
        const Tensor x = values_near(far.mean, far.shape, format);
        const Tensor weight = random(channels, 2, DType::f32),
                     bias = random(channels, 3, DType::f32);
        Direct direct(x);
        const double least = std::ranges::min(direct.var);
        const Tensor mean = raw::to(from_vector(direct.mean, channels), DType::f32);
        const Tensor var = raw::to(from_vector(direct.var, channels), DType::f32);
        if (!training) direct.mean = mean.to_vector<double>(), direct.var = var.to_vector<double>();
        const Tensor expected = direct.normalised(far.shape, weight, bias, 0);
        const Tensor y =
            batch_norm(x, raw::clone(mean), raw::clone(var), weight, bias, training, 0.1, 0);
        // |x - mean| is at most 2, weight and bias 1. Each of scale, shift, (x - center)·scale and
        // y is rounded; the running statistics are exact.
        const double invstd = 1 / std::sqrt(least);
        const FarBound off(direct.count, std::abs(far.mean), std::sqrt(least));
        const double statistics = training ? invstd * off.center + 2 * invstd * off.variance : 0;
        CHECK_LE(max_abs_difference(y, expected), 4 * FarBound::u * (2 * invstd + 1) + statistics);
      }
}

TEST_CASE("gradients of batch_norm in f32 are as exact far from zero as near it") {
  for (const Far& far : kFar)
    for (MemoryFormat format : kFormats)
      for (bool training : {true, false}) {
        CAPTURE(far.mean);
        CAPTURE(training);
        const Shape channels{far.shape[1]};
        const Tensor x = values_near(far.mean, far.shape, format);
        const Direct direct(x);
        const double least = std::ranges::min(direct.var), n = direct.count;
        const Tensor mean = raw::to(from_vector(direct.mean, channels), DType::f32);
        const Tensor var = raw::to(from_vector(direct.var, channels), DType::f32);
        const Tensor w = random(channels, 3, DType::f32), b = random(channels, 4, DType::f32);
        const Tensor dy = random(far.shape, 5, DType::f32, format, -0.5, 1);  // Σdy is not near 0
        const auto gradients = [&](DType to) {
          Tensor xx = raw::clone(raw::to(x, to)), ww = raw::clone(raw::to(w, to));
          Tensor bb = raw::clone(raw::to(b, to));
          xx.requires_grad_(), ww.requires_grad_(), bb.requires_grad_();
          batch_norm(xx, raw::clone(raw::to(mean, to)), raw::clone(raw::to(var, to)), ww, bb,
                     training, 0.1, 0)
              .backward(raw::to(dy, to));
          return Tensors{xx.grad(), ww.grad(), bb.grad()};
        };
        const Tensors got = gradients(DType::f32), expected = gradients(DType::f64);
        // As near zero: a few roundings of dx, sums of n products. And what the statistics are off:
        // invstd, to the third power in dx, and the mean in units of the deviation.
        const FarBound off(n, std::abs(far.mean), std::sqrt(least));
        const double statistics =
            training ? 4 * off.variance + 4 * off.center / std::sqrt(least) : 0;
        CHECK_LE(relative_difference(got[0], expected[0]), 16 * FarBound::u + statistics);
        CHECK_LE(relative_difference(got[1], expected[1]), (n + 16) * FarBound::u + statistics);
        CHECK_LE(relative_difference(got[2], expected[2]), n * FarBound::u);
      }
}

TEST_CASE("gradients of batch_norm") {
  const Tensor mean = random({3}, 7),
               var = random({3}, 8, DType::f64, MemoryFormat::contiguous, 0.5, 2);
  for (MemoryFormat format : kFormats)
    for (bool training : {true, false}) {
      CAPTURE(training);
      const auto stats = [&] { return training ? Tensors(2) : Tensors{mean, var}; };
      check_gradients(
          [&](const Tensors& in) {
            return batch_norm(in[0], stats()[0], stats()[1], in[1], in[2], training);
          },
          {leaf({2, 3, 3, 2}, 1, format), leaf({3}, 2), leaf({3}, 3)});
      check_gradients(
          [&](const Tensors& in) {
            return batch_norm(in[0], stats()[0], stats()[1], {}, {}, training);
          },
          {leaf({2, 3, 3, 2}, 1, format)});
      check_gradients(  // of the parameters alone
          [&](const Tensors& in) {
            return batch_norm(random({2, 3, 3, 2}, 1), stats()[0], stats()[1], in[0], in[1],
                              training);
          },
          {leaf({3}, 2), leaf({3}, 3)});
    }
  check_gradients([](const Tensors& in) { return batch_norm(in[0], {}, {}, in[1], {}, true); },
                  {leaf({5, 3}, 1), leaf({3}, 2)});
}

TEST_CASE("gradients of batch_norm in f32 and bf16 follow those in f64") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (MemoryFormat format : kFormats) {
      // The same values in both precisions: x and dy are rounded first.
      const Tensor x = random({4, 18, 6, 5}, 1, dtype, format),
                   dy = random({4, 18, 6, 5}, 2, dtype);
      const Tensor w = random({18}, 3, DType::f32), b = random({18}, 4, DType::f32);
      const auto gradients = [&](DType to) {
        const DType parameter = to == DType::f64 ? DType::f64 : DType::f32;
        Tensor xx = raw::clone(raw::to(x, to)), ww = raw::clone(raw::to(w, parameter));
        Tensor bb = raw::clone(raw::to(b, parameter));
        xx.requires_grad_(), ww.requires_grad_(), bb.requires_grad_();
        batch_norm(xx, {}, {}, ww, bb, true).backward(raw::to(dy, to));
        return Tensors{xx.grad(), ww.grad(), bb.grad()};
      };
      const Tensors got = gradients(dtype), expected = gradients(DType::f64);
      CHECK(got[0].dtype() == dtype);
      CHECK(got[0].format() == format);
      CHECK(got[1].dtype() == DType::f32);
      // dx is a sum of three terms of f32, rounded once; dweight and dbias sum 120 products in f32.
      CHECK_LE(relative_difference(got[0], expected[0]),
               dtype == DType::bf16 ? 0x1p-8 : 16 * 0x1p-24);
      CHECK_LE(relative_difference(got[1], expected[1]), 120 * 0x1p-24);
      CHECK_LE(relative_difference(got[2], expected[2]), 120 * 0x1p-24);
    }
}

TEST_CASE("batch_norm under autocast keeps the dtype of x") {
  const AutocastGuard guard;
  const Tensor mean = zeros({3}), var = ones({3});
  for (DType dtype : {DType::f32, DType::bf16})
    CHECK(batch_norm(random({2, 3, 4, 4}, 1, dtype), mean, var, {}, {}, true).dtype() == dtype);
}

TEST_CASE("batch_norm gives the same bits for any number of threads") {
  const test::Threads kept;
  for (MemoryFormat format : kFormats) {
    const auto run = [&](int n) {
      set_num_threads(n);
      Tensor x = random({5, 33, 29, 31}, 1, DType::f32, format).requires_grad_();
      Tensor w = random({33}, 2, DType::f32).requires_grad_();
      const Tensor y = batch_norm(x, {}, {}, w, {}, true);
      y.backward(random({5, 33, 29, 31}, 3, DType::f32));
      return Tensors{y, x.grad(), w.grad()};
    };
    const Tensors one = run(1);
    for (int n : {2, 3}) {
      const Tensors other = run(n);
      for (size_t i = 0; i < 3; ++i) CHECK(same_bits(one[i], other[i]));
    }
  }
}

TEST_CASE("batch_norm takes parameters of bf16, in f32") {
  const Tensor x = random({5, 3, 2, 2}, 1, DType::bf16);
  Tensor w = random({3}, 2, DType::bf16).requires_grad_(), b = random({3}, 3, DType::bf16);
  Tensor wide = raw::to(w, DType::f32).requires_grad_();
  const Tensor mean = zeros({3}, DType::bf16), var = ones({3}, DType::bf16);
  const Tensor y = batch_norm(x, mean, var, w, b, true),
               same = batch_norm(x, {}, {}, wide, raw::to(b, DType::f32), true);
  CHECK(same_bits(y, same));
  y.backward(ones_like(y)), same.backward(ones_like(same));
  CHECK(same_bits(w.grad(), raw::to(wide.grad(), DType::bf16)));
  CHECK(max_abs_difference(mean, zeros({3})) > 0);
  CHECK(batch_norm(x, mean, var, w, b, false).dtype() == DType::bf16);
}

TEST_CASE("batch_norm changes neither of its statistics if it cannot write to one") {
  const Tensor x = random({5, 3}, 1, DType::f32), mean = zeros({3});
  CHECK_THROWS_WITH_AS(
      batch_norm(x, mean, raw::expand(ones({1}), {3}), {}, {}, true),
      "[batch_norm] running_var: expected no expanded dimension, got f32 [3] strides [0]", Error);
  CHECK(mean.to_vector<double>() == std::vector<double>(3, 0.0));
  CHECK(mean.version() == zeros({3}).version());
}

TEST_CASE("batch_norm refuses what it cannot do") {
  const Tensor x = random({2, 3, 4, 4}, 1, DType::f32), c = ones({3});
  CHECK_THROWS_WITH_AS(
      batch_norm({}, c, c, c, c, true),
      "[batch_norm] x: expected a floating, non-empty tensor [N,C,...], got undefined", Error);
  CHECK_THROWS_WITH_AS(
      batch_norm(zeros({0, 3, 4, 4}), c, c, c, c, true),
      "[batch_norm] x: expected a floating, non-empty tensor [N,C,...], got f32 [0,3,4,4]", Error);
  CHECK_THROWS_WITH_AS(
      batch_norm(ones({2, 3}, DType::i64), c, c, c, c, true),
      "[batch_norm] x: expected a floating, non-empty tensor [N,C,...], got i64 [2,3]", Error);
  CHECK_THROWS_AS(batch_norm(ones({3}), c, c, c, c, true), Error);
  CHECK_THROWS_WITH_AS(batch_norm(x, c, c, ones({4}), c, true),
                       "[batch_norm] weight: expected f32 [3], got f32 [4]; x f32 [2,3,4,4]",
                       Error);
  CHECK_THROWS_WITH_AS(batch_norm(x, c, c, c, ones({3}, DType::bf16), true),
                       "[batch_norm] bias: expected f32 [3], got bf16 [3]; x f32 [2,3,4,4]", Error);
  CHECK_THROWS_WITH_AS(
      batch_norm(x, ones({3, 1}), c, c, c, true),
      "[batch_norm] running_mean: expected f32 [3], got f32 [3,1]; x f32 [2,3,4,4]", Error);
  CHECK_THROWS_WITH_AS(
      batch_norm(x, c, {}, c, c, false),
      "[batch_norm] running_mean, running_var: expected both in evaluation, got f32 [3], undefined",
      Error);
  CHECK_THROWS_WITH_AS(
      batch_norm(ones({1, 3, 1, 1}), c, c, c, c, true),
      "[batch_norm] x: expected more than 1 value per channel when training, got f32 [1,3,1,1]",
      Error);
  CHECK_NOTHROW(batch_norm(ones({1, 3, 1, 1}), c, c, c, c, false));
  CHECK_THROWS_AS(batch_norm(x, c, c, c, c, true, 0.1, -1), Error);
  CHECK(c.to_vector<float>() == std::vector<float>(3, 1));  // nothing was changed
}
