// Every layer_norm record against f64, and the driver that merges rows. u is the unit roundoff of
// what a kernel computes in, gamma(n) bounds n roundings.
#include <doctest/doctest.h>

#include <cmath>

#include "kernels/gemm_oracle.h"
#include "kernels/records.h"
#include "larger.h"
#include "quern/ops/kernels/norm/layer_norm.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::unit_roundoff;

namespace {

DType computed_in(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Relative error of n roundings; twice that in f64, where the oracle errs as much.
double gamma(const LayerNormKernel& kernel, double n) {
  const double u = unit_roundoff(computed_in(kernel.dtype));
  return (kernel.dtype == DType::f64 ? 2 : 1) * n * u / (1 - n * u);
}

struct Case {
  Case(const LayerNormKernel& kernel, LayerNormRows size, double shift = 0)
      : kernel(kernel),
        size(size),
        x(kernel.dtype, size.rows * size.columns),
        dy(kernel.dtype, x.count()),
        y(kernel.dtype, x.count()),
        dx(kernel.dtype, x.count()),
        weight(computed_in(kernel.dtype), size.columns),
        bias(computed_in(kernel.dtype), size.columns),
        mean(static_cast<size_t>(size.rows)),
        invstd(computed_in(kernel.dtype), size.rows),
        dweight(static_cast<size_t>(size.columns)),
        dbias(dweight) {
    x.fill_random(1), dy.fill_random(2), weight.fill_random(3), bias.fill_random(4);
    for (int64_t i = 0; i < x.count(); ++i) x.set(i, x.get(i) + shift);
  }

  void run() {
    layer_norm_forward(kernel, size, x.data(), weight.data(), bias.data(), kEps, y.data(),
                       mean.data(), invstd.data());
    layer_norm_backward(kernel, size, x.data(), dy.data(), weight.data(), mean.data(),
                        invstd.data(), dx.data(), dweight.data(), dbias.data());
  }

  /// Relative errors of mean are of the magnitude of x, which `shift` makes larger than its spread.
  void check() const {
    const double n = static_cast<double>(size.columns);
    const double sums = gamma(kernel, std::min(n, 4096.0) + 8);  // longer rows are merged in f64
    std::vector<test::Sum> dw(dweight.size()), db(dbias.size());
    double worst_y = 0, worst_dx = 0;
    for (int64_t r = 0; r < size.rows; ++r) {
      const auto at = [&](int64_t i) { return r * size.columns + i; };
      long double sum = 0;  // so that the oracle of f64 is exact enough for a large mean
      double m2 = 0, magnitude = 0;
      for (int64_t i = 0; i < size.columns; ++i)
        sum += x.get(at(i)), magnitude += std::fabs(x.get(at(i))) / n;
      const double m = static_cast<double>(sum / n);
      for (int64_t i = 0; i < size.columns; ++i) m2 += (x.get(at(i)) - m) * (x.get(at(i)) - m);
      const double s = 1 / std::sqrt(m2 / n + kEps), deviation = std::sqrt(m2 / n);
      // The mean leaves in f64; m2 has γ relatively, halved by the root.
      // The naive one sums x as it is; for f32 and bf16 in f64, which is as good as exact.
      const bool naive = kernel.name == std::string_view("layer_norm_f64_reference");
      const double mean_error =
          sums * deviation + (naive ? sums : sums * sums + 0x1p-51) * magnitude;
      const double relative = sums + gamma(kernel, 4) + mean_error * mean_error * s * s;
      CHECK_LE(std::fabs(mean[static_cast<size_t>(r)] - m), mean_error);
      CHECK_LE(std::fabs(invstd.get(r) - s), relative * s);

      test::Sum g_sum, gh_sum;
      for (int64_t i = 0; i < size.columns; ++i) {
        const double h = (x.get(at(i)) - m) * s, g = dy.get(at(i)) * weight.get(i);
        const double h_error = mean_error * s + (relative + gamma(kernel, 2)) * std::fabs(h);
        const double expected = h * weight.get(i) + bias.get(i);
        const double error = h_error * std::fabs(weight.get(i)) +
                             gamma(kernel, 2) * std::fabs(expected) +
                             gamma(kernel, 1) * std::fabs(bias.get(i));
        const double bound = error + unit_roundoff(kernel.dtype) * (std::fabs(expected) + error);
        worst_y = test::larger(worst_y, std::fabs(y.get(at(i)) - expected) - bound);

        g_sum.add(g), gh_sum.add(g * h);
        gh_sum.magnitude += std::fabs(g) * h_error / sums;  // an error that the sum takes over
        const size_t column = static_cast<size_t>(i);
        dw[column].add(dy.get(at(i)) * h), db[column].add(dy.get(at(i)));
        dw[column].magnitude += std::fabs(dy.get(at(i))) * h_error / sums;
      }
      for (int64_t i = 0; i < size.columns; ++i) {
        const double h = (x.get(at(i)) - m) * s, g = dy.get(at(i)) * weight.get(i);
        const double h_error = mean_error * s + (relative + gamma(kernel, 2)) * std::fabs(h);
        const double g_mean = g_sum.value / n, gh_mean = gh_sum.value / n;
        const double expected = s * (g - g_mean - h * gh_mean);
        const double terms = std::fabs(g) + std::fabs(g_mean) + std::fabs(h * gh_mean);
        const double error =
            s * (sums * (g_sum.magnitude + std::fabs(h) * gh_sum.magnitude) / n +
                 h_error * std::fabs(gh_mean) + (relative + gamma(kernel, 6)) * terms);
        const double bound =
            1.01 * error + unit_roundoff(kernel.dtype) * (std::fabs(expected) + error);
        worst_dx = test::larger(worst_dx, std::fabs(dx.get(at(i)) - expected) - bound);
      }
    }
    CHECK_LE(worst_y, 0);
    CHECK_LE(worst_dx, 0);
    // Columns are summed in f32 over 64 rows, then in f64.
    const double columns = gamma(kernel, std::min(static_cast<double>(size.rows), 64.0) + 3);
    for (size_t i = 0; i < dw.size(); ++i) {
      CHECK_LE(std::fabs(dweight[i] - dw[i].value), (columns + sums) * dw[i].magnitude);
      CHECK_LE(std::fabs(dbias[i] - db[i].value), columns * db[i].magnitude);
    }
  }

  static constexpr double kEps = 1e-5;
  const LayerNormKernel& kernel;
  LayerNormRows size;
  Elements x, dy, y, dx, weight, bias;
  std::vector<double> mean;
  Elements invstd;
  std::vector<double> dweight, dbias;
};

}  // namespace

TEST_CASE("layer_norm kernels on rows around the sizes of vectors") {
  test::each_runnable(table<LayerNormKernel>(), [](const LayerNormKernel& kernel) {
    for (int64_t rows : {1, 2, 67})
      for (int64_t columns : {2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 130}) {
        CAPTURE(rows);
        CAPTURE(columns);
        Case one(kernel, {rows, columns});
        one.run();
        one.check();
      }
  });
}

TEST_CASE("layer_norm kernels on rows longer than a segment, and of a large mean") {
  test::each_runnable(table<LayerNormKernel>(), [](const LayerNormKernel& kernel) {
    Case longer(kernel, {3, 10001});
    longer.run();
    longer.check();
    if (kernel.dtype == DType::bf16) return;  // which cannot hold what follows
    Case shifted(kernel, {5, 333}, 1e4);
    shifted.run();
    shifted.check();
  });
}

TEST_CASE("a row of one column is its bias") {
  test::each_runnable(table<LayerNormKernel>(), [](const LayerNormKernel& kernel) {
    Case one(kernel, {4, 1});
    one.bias.set(0, 0.5);
    one.run();
    for (int64_t r = 0; r < 4; ++r) CHECK(one.y.get(r) == 0.5);
    one.check();  // dx is 0 but for rounding
  });
}

TEST_CASE("layer_norm gives the same bits for any number of threads") {
  const test::Threads kept;
  test::each_runnable(table<LayerNormKernel>(), [](const LayerNormKernel& kernel) {
    set_num_threads(1);
    Case first(kernel, {3000, 37});
    first.run();
    first.check();
    for (int n : {2, 3}) {
      set_num_threads(n);
      Case other(kernel, {3000, 37});
      other.run();
      CHECK(other.dweight == first.dweight);
      CHECK(other.dbias == first.dbias);
      CHECK(std::memcmp(other.dx.data(), first.dx.data(), 3000 * 37 * itemsize(kernel.dtype)) == 0);
      CHECK(std::memcmp(other.y.data(), first.y.data(), 3000 * 37 * itemsize(kernel.dtype)) == 0);
    }
  });
}
