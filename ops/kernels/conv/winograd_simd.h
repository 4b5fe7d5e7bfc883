// Winograd's transforms on vectors of xsimd, once an instruction set. A vector lies along channels, a
// whole tile in registers (16 of AVX-512's 32): 32 additions for a source tile, 24 for an output tile,
// so that both run at the pace of their 16 stores and 16 loads.
#pragma once
#include "quern/ops/kernels/conv/winograd_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

template <class Arch>
struct WinogradLoops {
  using V = Vec<float, Arch>;

  static void source(const WinogradTiles& t) {
    for (int64_t tile = 0; tile < t.tiles; ++tile) {
      const float* from = t.from + 2 * tile * t.pixel;
      float* to = t.to + tile * t.tile;
      each_vector<float, Arch>(t.channels, [&](int64_t c, int, auto lanes) {
        V d[4][4];  // Bᵀ·d, a column after the other
        unroll<4>([&](int j) {
          const auto at = [&](int i) { return lanes.load(from + i * t.row + j * t.pixel + c); };
          const V d1 = at(1), d2 = at(2);
          d[0][j] = at(0) - d2;
          d[1][j] = d1 + d2;
          d[2][j] = d2 - d1;
          d[3][j] = d1 - at(3);
        });
        unroll<4>([&](int i) {
          const auto put = [&](int j, V v) { lanes.store(to + (4 * i + j) * t.point + c, v); };
          put(0, d[i][0] - d[i][2]);
          put(1, d[i][1] + d[i][2]);
          put(2, d[i][2] - d[i][1]);
          put(3, d[i][1] - d[i][3]);
        });
      });
    }
  }

  /// G·g of one column
  static void filter(V g0, V g1, V g2, V (&u)[4]) {
    const V even = V(0.5f) * (g0 + g2), odd = V(0.5f) * g1;
    u[0] = g0;
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = g2;
  }

  static void weight(const WinogradFilters& w) {
    for (int64_t k = 0; k < w.filters; ++k) {
      const float* from = w.from + k * w.filter;
      float* to = w.to + k * w.row;
      each_vector<float, Arch>(w.columns, [&](int64_t c, int, auto lanes) {
        V g[3][4];  // G·g, a column after the other
        unroll<3>([&](int s) {
          const auto at = [&](int r) { return lanes.load(from + (3 * r + s) * w.tap + c); };
          filter(at(0), at(1), at(2), g[s]);
        });
        unroll<4>([&](int i) {
          V u[4];
          filter(g[0][i], g[1][i], g[2][i], u);
          unroll<4>([&](int j) { lanes.store(to + (4 * i + j) * w.point + c, u[j]); });
        });
      });
    }
  }

  static void output(const WinogradTiles& t) {
    for (int64_t tile = 0; tile < t.tiles; ++tile) {
      const float* from = t.from + tile * t.tile;
      float* to = t.to + 2 * tile * t.pixel;
      each_vector<float, Arch>(t.channels, [&](int64_t c, int, auto lanes) {
        V m[2][4];  // Aᵀ·m, a column after the other
        unroll<4>([&](int j) {
          const auto at = [&](int i) { return lanes.load(from + (4 * i + j) * t.point + c); };
          const V m1 = at(1), m2 = at(2);
          m[0][j] = at(0) + (m1 + m2);
          m[1][j] = (m1 - m2) - at(3);
        });
        unroll<2>([&](int i) {
          float* row = to + i * t.row + c;
          lanes.store(row, m[i][0] + (m[i][1] + m[i][2]));
          lanes.store(row + t.pixel, (m[i][1] - m[i][2]) - m[i][3]);
        });
      });
    }
  }

  static void output_gradient(const WinogradTiles& t) {
    for (int64_t tile = 0; tile < t.tiles; ++tile) {
      const float* from = t.from + 2 * tile * t.pixel;
      float* to = t.to + tile * t.tile;
      each_vector<float, Arch>(t.channels, [&](int64_t c, int, auto lanes) {
        const auto put = [&](int point, V v) { lanes.store(to + point * t.point + c, v); };
        V d[4][2];  // A·dy, a column after the other
        unroll<2>([&](int j) {
          const V d0 = lanes.load(from + j * t.pixel + c);
          const V d1 = lanes.load(from + t.row + j * t.pixel + c);
          d[0][j] = d0;
          d[1][j] = d0 + d1;
          d[2][j] = d0 - d1;
          d[3][j] = -d1;
        });
        unroll<4>([&](int i) {
          put(4 * i, d[i][0]);
          put(4 * i + 1, d[i][0] + d[i][1]);
          put(4 * i + 2, d[i][0] - d[i][1]);
          put(4 * i + 3, -d[i][1]);
        });
      });
    }
  }

  /// Gᵀ·m of one column
  static void filter_gradient(V m0, V m1, V m2, V m3, V (&g)[3]) {
    const V even = V(0.5f) * (m1 + m2);
    g[0] = m0 + even;
    g[1] = V(0.5f) * (m1 - m2);
    g[2] = even + m3;
  }

  static void weight_gradient(const WinogradFilters& w) {
    for (int64_t k = 0; k < w.filters; ++k) {
      const float* from = w.from + k * w.row;
      float* to = w.to + k * w.filter;
      each_vector<float, Arch>(w.columns, [&](int64_t c, int, auto lanes) {
        V m[4][3];  // Gᵀ·m, a column after the other
        unroll<4>([&](int j) {
          const auto at = [&](int i) { return lanes.load(from + (4 * i + j) * w.point + c); };
          filter_gradient(at(0), at(1), at(2), at(3), m[j]);
        });
        unroll<3>([&](int r) {
          V g[3];
          filter_gradient(m[0][r], m[1][r], m[2][r], m[3][r], g);
          unroll<3>([&](int s) { lanes.store(to + (3 * r + s) * w.tap + c, g[s]); });
        });
      });
    }
  }

  static constexpr WinogradKernel record(const char* name, Isa isa) {
    return {name, isa, source, weight, output, output_gradient, weight_gradient};
  }
};

}  // namespace
}  // namespace quern::kernels
