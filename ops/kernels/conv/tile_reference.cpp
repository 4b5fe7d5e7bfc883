// The tile kernels spelled out: an element after the other.
#include "quern/ops/kernels/conv/strides.h"
#include "quern/ops/kernels/conv/tile_registry.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

template <class T>
struct Naive {
  using S = Accumulator<T>;

  /// out = f(sum, row, column) for every element.
  template <class F>
  static void each(const SumTile& tile, F f) {
    for (int64_t i = 0; i < tile.m; ++i)
      for (int64_t j = 0; j < tile.n; ++j)
        static_cast<T*>(tile.out)[i * tile.out_stride + j] =
            static_cast<T>(f(static_cast<const S*>(tile.sums)[i * tile.sums_stride + j], i, j));
  }
  static S at(TileRows rows, int64_t i, int64_t j) {
    return static_cast<S>(static_cast<const T*>(rows.data)[i * rows.stride + j]);
  }
  static const S* array(const void* p) { return static_cast<const S*>(p); }
  static S* array(void* p) { return static_cast<S*>(p); }

  static void store(const SumTile& tile) {
    each(tile, [](S sum, int64_t, int64_t) { return sum; });
  }
  static void activate(const SumTile& tile, const void* scale, const void* shift, TileRows residual,
                       bool relu) {
    each(tile, [&](S sum, int64_t i, int64_t j) {
      S v = array(scale)[j] * sum + array(shift)[j];
      if (residual.data) v += at(residual, i, j);
      return relu && v <= 0 ? S(0) : v;
    });
  }
  static void moments(const SumTile& tile, const void* pivot, void* d, void* d2) {
    each(tile, [&](S sum, int64_t, int64_t j) {
      const S distance = sum - array(pivot)[j];
      array(d)[j] += distance;
      array(d2)[j] += distance * distance;
      return sum;
    });
  }
  static void gradient(const SumTile& tile, TileRows residual, TileRows x, const void* scale,
                       const void* shift, const void* mean, void* s, void* sx) {
    each(tile, [&](S sum, int64_t i, int64_t j) {
      const S v = at(x, i, j);
      S dz = residual.data ? sum + at(residual, i, j) : sum;
      if (array(scale)[j] * v + array(shift)[j] <= 0) dz = 0;
      array(s)[j] += dz;
      array(sx)[j] += dz * (v - array(mean)[j]);
      return dz;
    });
  }
  static constexpr TileKernel record(const char* name, DType dtype) {
    return {name, Isa::portable, dtype, store, activate, moments, gradient};
  }
};

}  // namespace

constinit const TileKernel conv_tile_reference[3] = {
    Naive<float>::record("conv_tile_f32_reference", DType::f32),
    Naive<bfloat16>::record("conv_tile_bf16_reference", DType::bf16),
    Naive<double>::record("conv_tile_f64_reference", DType::f64),
};

}  // namespace quern::kernels
