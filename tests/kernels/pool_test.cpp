// Every pool record against windows walked by the definition, in f64: all elements of the result
// for max_pool (which is exact), bounds on the rounding of a mean for avg_pool.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/gemm_oracle.h"
#include "kernels/records.h"
#include "quern/ops/kernels/pool/pool.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::unit_roundoff;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Windows {
  PoolStep h, w;
  bool ceil_mode = false, count_include_pad = true;
};
const Windows kWindows[] = {{{3, 2, 1, 1}, {3, 2, 1, 1}},
                            {{2, 2, 0, 1}, {2, 2, 0, 1}, true},
                            {{1, 1, 0, 1}, {1, 2, 0, 1}},
                            {{3, 1, 1, 2}, {2, 3, 1, 3}},
                            {{5, 3, 2, 1}, {4, 3, 2, 1}, true},
                            {{2, 4, 1, 1}, {3, 5, 1, 1}, true, false},
                            {{3, 1, 1, 1}, {7, 1, 3, 1}, false, false}};

struct Case {
  Case(const PoolKernel& kernel, int64_t images, int64_t channels, PoolWindows h, PoolWindows w)
      : kernel(kernel),
        images(images),
        windows_h(std::move(h)),
        windows_w(std::move(w)),
        pool{channels, windows_h.axis(), windows_w.axis(),
             windows_h.kernel * windows_w.kernel > 256},
        x(kernel.dtype, images * pool.h.in * pool.w.in * channels),
        dx(kernel.dtype, x.count()),
        y(kernel.dtype, images * pool.h.out * pool.w.out * channels),
        dy(kernel.dtype, y.count()),
        index(static_cast<size_t>(y.count() * (pool.wide_index ? 4 : 1))) {
    x.fill_random(1), dy.fill_random(2);
    y.fill(kNaN), dx.fill(kNaN);
  }

  int64_t in(int64_t n, int64_t h, int64_t w, int64_t c) const {
    return ((n * pool.h.in + h) * pool.w.in + w) * pool.channels + c;
  }
  template <class F>
  void each_output(F f) const {
    int64_t i = 0;
    for (int64_t n = 0; n < images; ++n)
      for (int64_t oh = 0; oh < pool.h.out; ++oh)
        for (int64_t ow = 0; ow < pool.w.out; ++ow)
          for (int64_t c = 0; c < pool.channels; ++c) f(n, oh, ow, c, i++);
  }

  /// Every element of y and dx; few values, so that most windows hold several equal maxima.
  void check_max() {
    for (int64_t i = 0; i < x.count(); ++i) x.set(i, std::round(x.get(i) * 3));
    for (int64_t i = 0; i < x.count(); i += 23) x.set(i, i % 2 == 0 ? kNaN : -kNaN);
    for (int64_t i = 3; i < x.count(); i += 11) x.set(i, -0.0);
    for (int64_t i = 5; i < x.count(); i += 7) x.set(i, -INFINITY);
    max_pool_forward(kernel, pool, images, x.data(), y.data(), index.data());
    max_pool_backward(kernel, pool, images, dy.data(), index.data(), dx.data());
    const Elements alone(kernel.dtype, y.count());
    max_pool_forward(kernel, pool, images, x.data(), alone.data(), nullptr);
    std::vector<double> expected(static_cast<size_t>(x.count())), magnitude = expected;
    int64_t wrong = 0;  // counted, since millions of checks take minutes where a CPU is emulated
    each_output([&](int64_t n, int64_t oh, int64_t ow, int64_t c, int64_t i) {
      double best = -INFINITY;
      int64_t from = -1;
      for (int64_t th = 0; th < pool.h.kernel; ++th)
        for (int64_t tw = 0; tw < pool.w.kernel; ++tw) {
          const int64_t h = oh * pool.h.stride - pool.h.padding + th * pool.h.dilation;
          const int64_t w = ow * pool.w.stride - pool.w.padding + tw * pool.w.dilation;
          if (h < 0 || h >= pool.h.in || w < 0 || w >= pool.w.in) continue;
          const double value = x.get(in(n, h, w, c));
          if (from < 0 || value > best || std::isnan(value)) best = value, from = in(n, h, w, c);
        }
      for (const double got : {y.get(i), alone.get(i)})
        wrong += !(got == best || (std::isnan(got) && std::isnan(best)));
      if (from < 0) return;
      expected[static_cast<size_t>(from)] += dy.get(i);
      magnitude[static_cast<size_t>(from)] += std::fabs(dy.get(i));
    });
    CHECK(wrong == 0);
    const auto taps = static_cast<double>(pool.h.kernel * pool.w.kernel);
    check_dx(expected, magnitude, taps);
    if (kernel.max_backward_plane == nullptr) return;
    dx.fill(kNaN);  // once more, row by row
    const int64_t item = itemsize(kernel.dtype), plane = pool.h.out * pool.w.out;
    for (int64_t n = 0; n < images; ++n)
      for (int64_t row = 0; row < pool.h.in; ++row)
        kernel.max_backward(pool, at(dy.data(), n * plane * item),
                            at(index.data(), n * plane * (pool.wide_index ? 4 : 1)), row,
                            at(dx.data(), (n * pool.h.in + row) * pool.w.in * item));
    check_dx(expected, magnitude, taps);
  }
  static std::byte* at(void* first, int64_t bytes) {
    return static_cast<std::byte*>(first) + bytes;
  }

  void check_avg() {
    avg_pool_forward(kernel, pool, images, x.data(), y.data());
    avg_pool_backward(kernel, pool, images, dy.data(), dx.data());
    std::vector<double> expected(static_cast<size_t>(x.count())), magnitude = expected;
    int64_t wrong = 0;
    each_output([&](int64_t n, int64_t oh, int64_t ow, int64_t c, int64_t i) {
      const PoolRange rows = pool.h.inputs[oh], columns = pool.w.inputs[ow];
      const double divisor = static_cast<double>(pool.h.divisor[oh] * pool.w.divisor[ow]);
      const int64_t height = rows.end - rows.begin, width = columns.end - columns.begin;
      test::Sum sum;
      for (int64_t h = rows.begin; h < rows.end; ++h)
        for (int64_t w = columns.begin; w < columns.end; ++w) {
          sum.add(x.get(in(n, h, w, c)) / divisor);
          const size_t at = static_cast<size_t>(in(n, h, w, c));
          expected[at] += dy.get(i) / divisor, magnitude[at] += std::fabs(dy.get(i)) / divisor;
        }
      // Additions along rows, then over rows, then a division.
      const double error = gamma(static_cast<double>(height + width)) * sum.magnitude;
      wrong += !(std::fabs(y.get(i) - sum.value) <= error + stored(sum.value, error));
    });
    CHECK(wrong == 0);
    check_dx(expected, magnitude, static_cast<double>(pool.h.out + pool.w.out));
  }

  void check_dx(const std::vector<double>& expected, const std::vector<double>& magnitude,
                double terms) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < x.count(); ++i) {
      const double error = gamma(terms) * magnitude[static_cast<size_t>(i)];
      const double value = expected[static_cast<size_t>(i)];
      wrong += !(std::fabs(dx.get(i) - value) <= error + stored(value, error));
    }
    CHECK(wrong == 0);
  }
  double gamma(double n) const {
    const double u = unit_roundoff(kernel.dtype == DType::f64 ? DType::f64 : DType::f32);
    return (kernel.dtype == DType::f64 ? 2 : 1) * n * u / (1 - n * u);
  }
  double stored(double value, double error) const {
    return unit_roundoff(kernel.dtype) * (std::fabs(value) + error);
  }

  const PoolKernel& kernel;
  int64_t images;
  PoolWindows windows_h, windows_w;
  Pool pool;
  Elements x, dx, y, dy;
  std::vector<std::byte> index;
};

PoolWindows make(int64_t in, const PoolStep& step, const Windows& windows) {
  return strided_windows(in, pooled_size(in, step, windows.ceil_mode), step,
                         windows.count_include_pad);
}

}  // namespace

TEST_CASE("pool kernels on channels around the sizes of vectors") {
  test::each_runnable(table<PoolKernel>(), [](const PoolKernel& kernel) {
    for (int64_t channels : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 67, 96})
      for (const Windows& windows : {kWindows[0], kWindows[3]}) {
        if (channels > kernel.max_channels) continue;
        CAPTURE(channels);
        Case one(kernel, 2, channels, make(7, windows.h, windows), make(9, windows.w, windows));
        if (windows.h.dilation == 1) one.check_avg();
        one.check_max();
      }
  });
}

TEST_CASE("pool kernels on windows of all kinds") {
  test::each_runnable(table<PoolKernel>(), [](const PoolKernel& kernel) {
    for (const Windows& windows : kWindows)
      for (int64_t h : {5, 8, 13}) {
        CAPTURE(h);
        Case one(kernel, 1, std::min<int64_t>(5, kernel.max_channels), make(h, windows.h, windows),
                 make(11, windows.w, windows));
        if (windows.h.dilation == 1) one.check_avg();
        one.check_max();
      }
    for (int64_t in : {1, 5, 7, 13})
      for (int64_t out : {1, 2, 3, 7, 16}) {
        CAPTURE(in);
        CAPTURE(out);
        Case(kernel, 2, std::min<int64_t>(6, kernel.max_channels), adaptive_windows(in, out),
             adaptive_windows(in + 1, out))
            .check_avg();
      }
    for (int64_t channels : {67, 96})  // a row that is cut by its channels
      if (channels <= kernel.max_channels)
        Case(kernel, 1, channels, adaptive_windows(47, 1), adaptive_windows(45, 1)).check_avg();
  });
}

TEST_CASE("pool kernels on long rows") {
  test::each_runnable(table<PoolKernel>(), [](const PoolKernel& kernel) {
    for (const Windows& windows : {kWindows[0], kWindows[3], kWindows[5]}) {
      Case one(kernel, 1, kernel.min_channels, make(4, windows.h, windows),
               make(1100, windows.w, windows));
      if (windows.h.dilation == 1) one.check_avg();
      one.check_max();
    }
  });
}

TEST_CASE("max_pool counts more than 256 taps") {
  test::each_runnable(table<PoolKernel>(), [](const PoolKernel& kernel) {
    const Windows windows{{17, 5, 8, 1}, {18, 3, 9, 1}};
    Case one(kernel, 1, std::min<int64_t>(19, kernel.max_channels), make(23, windows.h, windows),
             make(21, windows.w, windows));
    CHECK(one.pool.wide_index);
    one.check_max();
  });
}

TEST_CASE("a window between dilated taps is empty: -inf, and no gradient") {
  test::each_runnable(table<PoolKernel>(), [](const PoolKernel& kernel) {
    const Windows windows{{2, 1, 1, 10}, {1, 1, 0, 1}};  // taps at -1 and 9 of 0..8
    Case one(kernel, 1, std::min<int64_t>(3, kernel.max_channels), make(9, windows.h, windows),
             make(2, windows.w, windows));
    CHECK(one.pool.h.out == 1);
    one.check_max();
    CHECK(one.y.get(0) == -INFINITY);
  });
}

TEST_CASE("pool kernels give the same bits for any number of threads") {
  const test::Threads kept;
  test::each_runnable(table<PoolKernel>(), [](const PoolKernel& kernel) {
    const auto run = [&](int n) {
      set_num_threads(n);
      const Windows& windows = kWindows[0];
      Case one(kernel, 3, std::min<int64_t>(65, kernel.max_channels), make(31, windows.h, windows),
               make(33, windows.w, windows));
      std::vector<std::vector<std::byte>> bytes;
      const auto keep = [&](const Elements& e) {
        const auto* p = static_cast<const std::byte*>(e.data());
        bytes.emplace_back(p, p + e.count() * itemsize(kernel.dtype));
      };
      max_pool_forward(kernel, one.pool, one.images, one.x.data(), one.y.data(), one.index.data());
      max_pool_backward(kernel, one.pool, one.images, one.dy.data(), one.index.data(),
                        one.dx.data());
      keep(one.y), keep(one.dx), bytes.push_back(one.index);
      avg_pool_forward(kernel, one.pool, one.images, one.x.data(), one.y.data());
      avg_pool_backward(kernel, one.pool, one.images, one.dy.data(), one.dx.data());
      keep(one.y), keep(one.dx);
      return bytes;
    };
    const auto first = run(1);
    CHECK((run(2) == first));
    CHECK((run(3) == first));
  });
}

TEST_CASE("windows are counted as PyTorch counts them") {
  // in, {kernel, stride, padding, dilation}, floor, ceil
  struct Row {
    int64_t in;
    PoolStep step;
    int64_t floor, ceil;
  };
  for (const Row& row : {Row{112, {3, 2, 1, 1}, 56, 57},
                         {7, {3, 2, 0, 1}, 3, 3},
                         {8, {3, 2, 0, 1}, 3, 4},
                         {5, {2, 2, 1, 1}, 3, 3},  // a fourth would start in the far padding
                         {1, {2, 2, 0, 1}, 0, 1},  // smaller than the window
                         {9, {3, 1, 1, 4}, 3, 3},  // dilated: 9 wide
                         {2, {3, 1, 0, 4}, 0, 0}}) {
    CAPTURE(row.in);
    CHECK(pooled_size(row.in, row.step, false) == row.floor);
    CHECK(pooled_size(row.in, row.step, true) == row.ceil);
  }
}

TEST_CASE("pool dispatch takes the best kernel under the cap, vectors only along channels") {
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<PoolKernel>(), [](Isa isa) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      CHECK(select_pool_kernel(dtype, 64, 9).name ==
            fmt::format("pool_{}_nhwc_{}", dtype, to_string(isa)));
      CHECK(select_pool_kernel(dtype, 1, 9).name == fmt::format("pool_{}_nchw_planes", dtype));
    }
  });
}
