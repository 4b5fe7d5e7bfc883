// Winograd's transforms on vectors of xsimd, once an instruction set. A vector lies along channels,
// a whole tile in registers (of F(2×2, 3×3); the 36 vectors of F(4×4, 3×3) spill to L1), so that
// they run at the pace of their loads and stores.
#pragma once
#include "quern/ops/kernels/conv/winograd/winograd_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

// The matrices of F(2, 3) and F(4, 3) times a column.

template <class V>
struct WinogradF2 {
  static constexpr int outputs = 2, points = 4;

  static inline __attribute__((always_inline)) void source(const V (&d)[4], V (&v)[4]) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
  }
  static inline __attribute__((always_inline)) void weight(const V (&g)[3], V (&u)[4]) {
    const V even = V(0.5f) * (g[0] + g[2]), odd = V(0.5f) * g[1];
    u[0] = g[0];
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = g[2];
  }
  static inline __attribute__((always_inline)) void output(const V (&m)[4], V (&y)[2]) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = (m[1] - m[2]) - m[3];
  }
  static inline __attribute__((always_inline)) void output_gradient(const V (&dy)[2], V (&m)[4]) {
    m[0] = dy[0];
    m[1] = dy[0] + dy[1];
    m[2] = dy[0] - dy[1];
    m[3] = -dy[1];
  }
  static inline __attribute__((always_inline)) void weight_gradient(const V (&m)[4], V (&dg)[3]) {
    const V even = V(0.5f) * (m[1] + m[2]);
    dg[0] = m[0] + even;
    dg[1] = V(0.5f) * (m[1] - m[2]);
    dg[2] = even + m[3];
  }
};

template <class V>
struct WinogradF4 {
  static constexpr int outputs = 4, points = 6;
  using C = Winograd4;

  static V constant(double v) { return V(static_cast<float>(v)); }

  static inline __attribute__((always_inline)) void source(const V (&d)[6], V (&v)[6]) {
    const V even_a = d[4] - constant(C::b2) * d[2],
            odd_a = constant(C::a) * (d[3] - constant(C::b2) * d[1]);
    const V even_b = d[4] - constant(C::a2) * d[2],
            odd_b = constant(C::b) * (d[3] - constant(C::a2) * d[1]);
    v[0] = d[0] + (d[4] - constant(C::q) * d[2]);
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = d[1] + (d[5] - constant(C::q) * d[3]);
  }
  static inline __attribute__((always_inline)) void weight(const V (&g)[3], V (&u)[6]) {
    const V even_a = constant(1 / C::alpha) * g[0] + constant(C::a2 / C::alpha) * g[2],
            odd_a = constant(C::a / C::alpha) * g[1];
    const V even_b = constant(1 / C::beta) * g[0] + constant(C::b2 / C::beta) * g[2],
            odd_b = constant(C::b / C::beta) * g[1];
    u[0] = g[0];
    u[1] = even_a + odd_a;
    u[2] = even_a - odd_a;
    u[3] = even_b + odd_b;
    u[4] = even_b - odd_b;
    u[5] = g[2];
  }
  static inline __attribute__((always_inline)) void output(const V (&m)[6], V (&y)[4]) {
    const V even_a = m[1] + m[2], odd_a = m[1] - m[2];
    const V even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = m[0] + (even_a + even_b);
    y[1] = constant(C::a) * odd_a + constant(C::b) * odd_b;
    y[2] = constant(C::a2) * even_a + constant(C::b2) * even_b;
    y[3] = m[5] + (constant(C::a3) * odd_a + constant(C::b3) * odd_b);
  }
};

struct WinogradLoops {
  using V = Vec<float>;

  /// to(i, j, (L·from·Lᵀ)[i][j]) for a matrix L, which `product` multiplies a column by.
  template <int rows, int columns, class Product, class From, class To>
  static inline __attribute__((always_inline)) void transform(Product product, From from, To to) {
    V half[rows][columns];  // L·from
    unroll<columns>([&](int j) {
      V in[columns], out[rows];
      unroll<columns>([&](int i) { in[i] = from(i, j); });
      product(in, out);
      unroll<rows>([&](int i) { half[i][j] = out[i]; });
    });
    unroll<rows>([&](int i) {
      V out[rows];
      product(half[i], out);
      unroll<rows>([&](int j) { to(i, j, out[j]); });
    });
  }

  template <class F>
  static void source(const WinogradTiles& t) {
    for (int64_t tile = 0; tile < t.tiles; ++tile) {
      const float* from = t.from + F::outputs * tile * t.pixel;
      float* to = t.to + tile * t.tile;
      each_vector<float>(t.channels, [&](int64_t c, int, auto lanes) {
        transform<F::points, F::points>(
            [](const auto& in, auto& out) { F::source(in, out); },
            [&](int i, int j) { return lanes.load(from + i * t.row + j * t.pixel + c); },
            [&](int i, int j, V v) { lanes.store(to + (F::points * i + j) * t.point + c, v); });
      });
    }
  }

  template <class F>
  static void weight(const WinogradFilters& w) {
    for (int64_t k = 0; k < w.filters; ++k) {
      const float* from = w.from + k * w.filter;
      float* to = w.to + k * w.row;
      each_vector<float>(w.columns, [&](int64_t c, int, auto lanes) {
        transform<F::points, 3>(
            [](const auto& in, auto& out) { F::weight(in, out); },
            [&](int r, int s) { return lanes.load(from + (3 * r + s) * w.tap + c); },
            [&](int i, int j, V v) { lanes.store(to + (F::points * i + j) * w.point + c, v); });
      });
    }
  }

  template <class F>
  static void output(const WinogradTiles& t) {
    for (int64_t tile = 0; tile < t.tiles; ++tile) {
      const float* from = t.from + tile * t.tile;
      float* to = t.to + F::outputs * tile * t.pixel;
      each_vector<float>(t.channels, [&](int64_t c, int, auto lanes) {
        transform<F::outputs, F::points>(
            [](const auto& in, auto& out) { F::output(in, out); },
            [&](int i, int j) { return lanes.load(from + (F::points * i + j) * t.point + c); },
            [&](int i, int j, V v) { lanes.store(to + i * t.row + j * t.pixel + c, v); });
      });
    }
  }

  template <class F>
  static void output_gradient(const WinogradTiles& t) {
    for (int64_t tile = 0; tile < t.tiles; ++tile) {
      const float* from = t.from + F::outputs * tile * t.pixel;
      float* to = t.to + tile * t.tile;
      each_vector<float>(t.channels, [&](int64_t c, int, auto lanes) {
        transform<F::points, F::outputs>(
            [](const auto& in, auto& out) { F::output_gradient(in, out); },
            [&](int i, int j) { return lanes.load(from + i * t.row + j * t.pixel + c); },
            [&](int i, int j, V v) { lanes.store(to + (F::points * i + j) * t.point + c, v); });
      });
    }
  }

  template <class F>
  static void weight_gradient(const WinogradFilters& w) {
    for (int64_t k = 0; k < w.filters; ++k) {
      const float* from = w.from + k * w.row;
      float* to = w.to + k * w.filter;
      each_vector<float>(w.columns, [&](int64_t c, int, auto lanes) {
        transform<3, F::points>(
            [](const auto& in, auto& out) { F::weight_gradient(in, out); },
            [&](int i, int j) { return lanes.load(from + (F::points * i + j) * w.point + c); },
            [&](int r, int s, V v) { lanes.store(to + (3 * r + s) * w.tap + c, v); });
      });
    }
  }

  static constexpr WinogradKernel record() {
    using F2 = WinogradF2<V>;
    using F4 = WinogradF4<V>;
    return {QUERN_NAMED("winograd"),
            kIsa,
            {2, source<F2>, weight<F2>, output<F2>, output_gradient<F2>, weight_gradient<F2>},
            {4, source<F4>, weight<F4>, output<F4>, nullptr, nullptr}};
  }
};

constexpr WinogradKernel kRecords[] = {WinogradLoops::record()};

}  // namespace

QUERN_KERNELS(WinogradKernel, winograd, kRecords)

}  // namespace quern::kernels
