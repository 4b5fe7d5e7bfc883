// The tile kernels on vectors of xsimd, once an instruction set. A vector lies along a row; what is kept
// a channel stays in registers from the first row to the last.
#pragma once
#include "quern/ops/kernels/conv/tile_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

template <class T, class Arch>
struct TileLoops {
  using V = Vec<T, Arch>;
  using S = Wide<T>;  // of the sums

  static const S* sums(const SumTile& tile, int64_t row) {
    return static_cast<const S*>(tile.sums) + row * tile.sums_stride;
  }
  static T* out(const SumTile& tile, int64_t row) {
    return static_cast<T*>(tile.out) + row * tile.out_stride;
  }
  static const T* row_of(TileRows rows, int64_t row) {
    return static_cast<const T*>(rows.data) + row * rows.stride;
  }
  static const S* array(const void* p) { return static_cast<const S*>(p); }
  static S* array(void* p) { return static_cast<S*>(p); }

  static void store(const SumTile& tile) {
    each_vector<T, Arch>(tile.n, [&](int64_t j, int, auto lanes) {
      for (int64_t i = 0; i < tile.m; ++i)
        lanes.store(out(tile, i) + j, lanes.load(sums(tile, i) + j));
    });
  }

  static void activate(const SumTile& tile, const void* scale, const void* shift, TileRows residual,
                       bool relu) {
    each_vector<T, Arch>(tile.n, [&](int64_t j, int, auto lanes) {
      const V a = lanes.load(array(scale) + j), b = lanes.load(array(shift) + j);
      for (int64_t i = 0; i < tile.m; ++i) {
        V v = xsimd::fma(a, lanes.load(sums(tile, i) + j), b);
        if (residual.data) v += lanes.load(row_of(residual, i) + j);
        if (relu) v = xsimd::select(v <= V(0), V(0), v);  // NaN passes
        lanes.store(out(tile, i) + j, v);
      }
    });
  }

  static void moments(const SumTile& tile, const void* pivot, void* d_, void* d2_) {
    S *d = array(d_), *d2 = array(d2_);
    each_vector<T, Arch>(tile.n, [&](int64_t j, int, auto lanes) {
      const V p = lanes.load(array(pivot) + j);
      V sum = lanes.load(d + j), sum2 = lanes.load(d2 + j);
      for (int64_t i = 0; i < tile.m; ++i) {
        const V v = lanes.load(sums(tile, i) + j), distance = v - p;
        sum += distance;
        sum2 = xsimd::fma(distance, distance, sum2);
        lanes.store(out(tile, i) + j, v);
      }
      lanes.store(d + j, sum);
      lanes.store(d2 + j, sum2);
    });
  }

  static void gradient(const SumTile& tile, TileRows residual, TileRows x, const void* scale,
                       const void* shift, const void* mean, void* s_, void* sx_) {
    S *s = array(s_), *sx = array(sx_);
    each_vector<T, Arch>(tile.n, [&](int64_t j, int, auto lanes) {
      const V a = lanes.load(array(scale) + j), b = lanes.load(array(shift) + j);
      const V center = lanes.load(array(mean) + j);
      V sum = lanes.load(s + j), sum_x = lanes.load(sx + j);
      for (int64_t i = 0; i < tile.m; ++i) {
        const V v = lanes.load(row_of(x, i) + j);
        V dz = lanes.load(sums(tile, i) + j);
        if (residual.data) dz += lanes.load(row_of(residual, i) + j);
        dz = xsimd::select(xsimd::fma(a, v, b) <= V(0), V(0), dz);
        sum += dz;
        sum_x = xsimd::fma(dz, v - center, sum_x);
        lanes.store(out(tile, i) + j, dz);
      }
      lanes.store(s + j, sum);
      lanes.store(sx + j, sum_x);
    });
  }

  static constexpr TileKernel record(const char* name, Isa isa, DType dtype) {
    return {name, isa, dtype, store, activate, moments, gradient};
  }
};

}  // namespace
}  // namespace quern::kernels
