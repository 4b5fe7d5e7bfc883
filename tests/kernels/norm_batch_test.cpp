// Every batch_norm record against f64 sums, on blocks with padded strides, and the driver that
// merges them. u is the unit roundoff of what a kernel computes in; gamma(n) bounds n roundings.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "kernels/gemm_oracle.h"
#include "kernels/records.h"
#include "larger.h"
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::unit_roundoff;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

DType computed_in(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Relative error of n roundings; twice that in f64, where the oracle errs as much.
double gamma(const BatchNormKernel& kernel, double n) {
  const double u = unit_roundoff(computed_in(kernel.dtype));
  return (kernel.dtype == DType::f64 ? 2 : 1) * n * u / (1 - n * u);
}

/// A block of a larger array: strides are padded by three elements of NaN.
struct Block {
  Block(const BatchNormKernel& kernel, int64_t rows, int64_t channels)
      : shape{rows, channels, (kernel.nhwc ? channels : rows) + 3},
        nhwc(kernel.nhwc),
        dtype(kernel.dtype) {}

  int64_t at(int64_t r, int64_t c) const {
    return nhwc ? r * shape.stride + c : c * shape.stride + r;
  }
  Elements elements(const std::function<double(int64_t)>& value) const {
    // The last row ends where its elements do.
    const int64_t count = at(shape.rows - 1, shape.channels - 1) + 1;
    Elements all(dtype, count);
    all.fill(kNaN);
    int64_t i = 0;
    for (int64_t r = 0; r < shape.rows; ++r)
      for (int64_t c = 0; c < shape.channels; ++c) all.set(at(r, c), value(i++));
    return all;
  }
  Elements parameters(uint32_t seed) const {
    Elements values(computed_in(dtype), shape.channels);
    values.fill_random(seed);
    return values;
  }
  /// Nothing but the block was written.
  bool padding_is_nan(const Elements& all) const {
    for (int64_t i = 0; i < all.count(); ++i) {
      const int64_t inner = i % shape.stride, width = nhwc ? shape.channels : shape.rows;
      if (inner >= width && !std::isnan(all.get(i))) return false;
    }
    return true;
  }

  BatchNormBlock shape;
  bool nhwc;
  DType dtype;
};

std::function<double(int64_t)> uniform(uint32_t seed, double shift = 0) {
  return [random = std::mt19937(seed), shift](int64_t) mutable {
    return shift + std::uniform_real_distribution<double>(-1, 1)(random);
  };
}

struct Moments {
  double mean = 0, m2 = 0, magnitude = 0,
         deviation = 0;  // the last two: means of |x| and |x - mean|
};
Moments moments(int64_t rows, const std::function<double(int64_t)>& x) {
  Moments m;
  const double n = static_cast<double>(rows);
  for (int64_t r = 0; r < rows; ++r) m.mean += x(r), m.magnitude += std::fabs(x(r)) / n;
  m.mean /= n;
  for (int64_t r = 0; r < rows; ++r) {
    m.m2 += (x(r) - m.mean) * (x(r) - m.mean);
    m.deviation += std::fabs(x(r) - m.mean) / n;
  }
  return m;
}

/// The pivot p of the two passes is the mean but for delta = gamma(n+1)·mean|x|. Then mean is off
/// by the error of Σ(x - p), and m2 by that of Σ(x - p)² = m2 + n·delta²; f64 holds the rest.
void check_moments(const BatchNormKernel& kernel, int64_t rows, const Moments& expected,
                   double mean, double m2) {
  const double n = static_cast<double>(rows), delta = gamma(kernel, n + 1) * expected.magnitude;
  const double tiny = 4 * std::numeric_limits<double>::epsilon();
  const double mean_bound =
      gamma(kernel, n + 2) * (expected.deviation + delta) + tiny * expected.magnitude;
  CHECK_LE(std::fabs(mean - expected.mean), mean_bound);
  CHECK_LE(std::fabs(m2 - expected.m2),
           gamma(kernel, 2 * n + 8) * (expected.m2 + n * delta * delta));
}

void check_stats(const BatchNormKernel& kernel, const Block& block, const Elements& x) {
  std::vector<double> mean(static_cast<size_t>(block.shape.channels), kNaN), m2 = mean;
  kernel.stats(block.shape, x.data(), mean.data(), m2.data());
  for (int64_t c = 0; c < block.shape.channels; ++c) {
    const size_t i = static_cast<size_t>(c);
    check_moments(kernel, block.shape.rows,
                  moments(block.shape.rows, [&](int64_t r) { return x.get(block.at(r, c)); }),
                  mean[i], m2[i]);
  }
}

void check_normalise(const BatchNormKernel& kernel, const Block& block, const Elements& x) {
  const Elements center = block.parameters(10), scale = block.parameters(11),
                 shift = block.parameters(12);
  const Elements y = block.elements([](int64_t) { return kNaN; });
  kernel.normalise(block.shape, x.data(), center.data(), scale.data(), shift.data(), y.data());
  CHECK(block.padding_is_nan(y));
  for (int64_t r = 0; r < block.shape.rows; ++r)
    for (int64_t c = 0; c < block.shape.channels; ++c) {
      const double product = (x.get(block.at(r, c)) - center.get(c)) * scale.get(c),
                   expected = product + shift.get(c);
      const double computed = gamma(kernel, 3) * (std::fabs(product) + std::fabs(shift.get(c)));
      const double stored = unit_roundoff(kernel.dtype) * (std::fabs(expected) + computed);
      CHECK_LE(std::fabs(y.get(block.at(r, c)) - expected), computed + stored);
    }
}

void check_backward(const BatchNormKernel& kernel, const Block& block, const Elements& x) {
  const Elements dy = block.elements(uniform(21)), center = block.parameters(22);
  std::vector<double> sum(static_cast<size_t>(block.shape.channels), kNaN), sum_x = sum;
  kernel.backward_reduce(block.shape, x.data(), dy.data(), center.data(), sum.data(), sum_x.data());
  const double n = static_cast<double>(block.shape.rows);
  for (int64_t c = 0; c < block.shape.channels; ++c) {
    test::Sum s, sx;
    for (int64_t r = 0; r < block.shape.rows; ++r) {
      const double g = dy.get(block.at(r, c));
      s.add(g), sx.add(g * (x.get(block.at(r, c)) - center.get(c)));
    }
    const size_t i = static_cast<size_t>(c);
    CHECK_LE(std::fabs(sum[i] - s.value), gamma(kernel, n) * s.magnitude);
    CHECK_LE(std::fabs(sum_x[i] - sx.value), gamma(kernel, n + 2) * sx.magnitude);
  }

  const Elements a = block.parameters(31), b = block.parameters(32),
                 constant = block.parameters(33);
  const Elements dx = block.elements([](int64_t) { return kNaN; });
  kernel.backward_apply(block.shape, x.data(), dy.data(), center.data(), a.data(), b.data(),
                        constant.data(), dx.data());
  CHECK(block.padding_is_nan(dx));
  for (int64_t r = 0; r < block.shape.rows; ++r)
    for (int64_t c = 0; c < block.shape.channels; ++c) {
      test::Sum expected;
      expected.add(a.get(c) * dy.get(block.at(r, c)));
      expected.add(b.get(c) * (x.get(block.at(r, c)) - center.get(c)));
      expected.add(constant.get(c));
      const double computed = gamma(kernel, 5) * expected.magnitude;
      const double stored = unit_roundoff(kernel.dtype) * (std::fabs(expected.value) + computed);
      CHECK_LE(std::fabs(dx.get(block.at(r, c)) - expected.value), computed + stored);
    }
}

}  // namespace

TEST_CASE("batch_norm kernels on blocks around the sizes of vectors") {
  test::each_runnable(table<BatchNormKernel>(), [](const BatchNormKernel& kernel) {
    for (int64_t rows : {1, 2, 5, 31, 64, 71})
      for (int64_t channels : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 64, 67, 81}) {
        CAPTURE(rows);
        CAPTURE(channels);
        const Block block(kernel, rows, channels);
        const Elements x = block.elements(uniform(1));
        check_stats(kernel, block, x);
        check_normalise(kernel, block, x);
        check_backward(kernel, block, x);
      }
  });
}

TEST_CASE("batch_norm statistics of a large mean keep the variance") {
  // In f32 E[x²] - E[x]² of these would lose all digits: u·1e8 is 6, and the variance 1/3.
  const auto fits = [](const BatchNormKernel& kernel) {
    return kernel.dtype != DType::bf16;  // which cannot hold such numbers
  };
  test::each_runnable(table<BatchNormKernel>(), fits, [](const BatchNormKernel& kernel) {
    for (int64_t channels : {3, 16, 70}) {
      const Block block(kernel, 97, channels);
      check_stats(kernel, block, block.elements(uniform(2, 1e4)));
    }
  });
}

TEST_CASE("batch_norm kernels let NaN through") {
  test::each_runnable(table<BatchNormKernel>(), [](const BatchNormKernel& kernel) {
    const Block block(kernel, 19, 18);
    const Elements x = block.elements([](int64_t i) { return i == 5 * 18 + 17 ? kNaN : 1.0; });
    const Elements one = block.parameters(1), y = block.elements([](int64_t) { return 0.0; });
    kernel.normalise(block.shape, x.data(), one.data(), one.data(), one.data(), y.data());
    CHECK(std::isnan(y.get(block.at(5, 17))));
    CHECK_FALSE(std::isnan(y.get(block.at(4, 17))));
    double mean[18], m2[18];
    kernel.stats(block.shape, x.data(), mean, m2);
    CHECK(std::isnan(mean[17]));
    CHECK_FALSE(std::isnan(mean[16]));
  });
}

TEST_CASE("batch_norm passes merge blocks, the same for any number of threads") {
  const test::Threads kept;
  test::each_runnable(table<BatchNormKernel>(), [](const BatchNormKernel& kernel) {
    for (const BatchNormSize size :
         {BatchNormSize{3, 1153, 5}, {2, 20000, 2}, {5, 49, 300}, {300, 1, 7}}) {
      const int64_t count = size.images * size.pixels * size.channels;
      const DType parameter = computed_in(kernel.dtype);
      Elements x(kernel.dtype, count), dy(kernel.dtype, count), y(kernel.dtype, count);
      Elements mean(parameter, size.channels), scale(parameter, size.channels);
      x.fill_random(1), dy.fill_random(2), mean.fill_random(3), scale.fill_random(4);
      const auto at = [&](int64_t c, int64_t r) {
        return kernel.nhwc ? r * size.channels + c
                           : (r / size.pixels * size.channels + c) * size.pixels + r % size.pixels;
      };
      const size_t channels = static_cast<size_t>(size.channels);
      std::vector<double> first;
      for (int n : {1, 2, 3}) {
        set_num_threads(n);
        std::vector<double> sums(4 * channels, kNaN);
        batch_norm_stats(kernel, size, x.data(), sums.data(), sums.data() + channels);
        batch_norm_backward_reduce(kernel, size, x.data(), dy.data(), mean.data(),
                                   sums.data() + 2 * channels, sums.data() + 3 * channels);
        if (n == 1) first = sums;
        CHECK(sums == first);
      }

      const int64_t rows = size.images * size.pixels;
      const double n = static_cast<double>(rows);
      batch_norm_normalise(kernel, size, x.data(), mean.data(), scale.data(), mean.data(),
                           y.data());
      for (int64_t c = 0; c < size.channels; ++c) {
        const size_t i = static_cast<size_t>(c);
        check_moments(kernel, rows, moments(rows, [&](int64_t r) { return x.get(at(c, r)); }),
                      first[i], first[channels + i]);
        test::Sum s, sx;
        double worst = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double g = dy.get(at(c, r)), value = x.get(at(c, r));
          s.add(g), sx.add(g * (value - mean.get(c)));
          const double product = (value - mean.get(c)) * scale.get(c),
                       expected = product + mean.get(c);
          const double bound = gamma(kernel, 3) * (std::fabs(product) + std::fabs(mean.get(c)));
          const double off = std::fabs(y.get(at(c, r)) - expected);
          worst = std::max(
              worst, off - bound - unit_roundoff(kernel.dtype) * (std::fabs(expected) + bound));
        }
        CHECK_LE(worst, 0);
        CHECK_LE(std::fabs(first[2 * channels + i] - s.value), gamma(kernel, n) * s.magnitude);
        CHECK_LE(std::fabs(first[3 * channels + i] - sx.value),
                 gamma(kernel, n + 2) * sx.magnitude);
      }

      // dx = mean·dy + scale·(x - mean) + mean, in the places and with the coefficients of y above.
      Elements dx(kernel.dtype, count);
      batch_norm_backward_apply(kernel, size, x.data(), dy.data(), mean.data(), mean.data(),
                                scale.data(), mean.data(), dx.data());
      double worst = 0;
      for (int64_t c = 0; c < size.channels; ++c)
        for (int64_t r = 0; r < rows; ++r) {
          test::Sum sum;
          sum.add(mean.get(c) * dy.get(at(c, r)));
          sum.add(scale.get(c) * (x.get(at(c, r)) - mean.get(c)));
          sum.add(mean.get(c));
          const double bound = gamma(kernel, 5) * sum.magnitude;
          const double stored = unit_roundoff(kernel.dtype) * (std::fabs(sum.value) + bound);
          worst = test::larger(worst, std::fabs(dx.get(at(c, r)) - sum.value) - bound - stored);
        }
      CHECK_LE(worst, 0);
    }
  });
}

TEST_CASE("batch_norm dispatch takes the best kernel under the cap") {
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<BatchNormKernel>(), [](Isa isa) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (bool nhwc : {false, true}) {
        const std::string name = select_batch_norm_kernel(dtype, nhwc).name;
        CHECK(name ==
              fmt::format("batch_norm_{}_{}_{}", dtype, nhwc ? "nhwc" : "nchw", to_string(isa)));
      }
  });
}
