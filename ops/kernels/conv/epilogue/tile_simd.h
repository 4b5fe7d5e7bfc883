// The tile kernels on vectors of xsimd, once an instruction set. A vector lies along a row; what is
// kept a channel stays in registers from the first row to the last. Each row prefetches that of the
// next tile, which hardware prefetchers, who see one line a row, do not: a tile takes as long as
// its misses.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/conv/epilogue/tile_kernel.h"

namespace quern::kernels {
namespace {

template <class T>
struct TileLoops {
  using V = Vec<T>;
  using S = Wide<T>;  // of the sums

  const SumTile& tile;
  const Epilogue& f;
  /// Are rows of `out` whole lines of vectors of f32, which bypass the caches?
  const bool streams = kStreams && std::is_same_v<T, float> && f.streams;

  const S* sums(int64_t row) const { return static_cast<const S*>(tile.sums) + row * tile.stride; }
  T* out(int64_t row) const { return static_cast<T*>(f.out) + row * f.stride; }
  const T* row_of(const void* tensor, int64_t row) const {
    return static_cast<const T*>(tensor) + row * f.stride;
  }
  void prefetch(const void* tensor, int64_t row, int64_t j) const {
    __builtin_prefetch(row_of(tensor, row + tile.m) + j, 0, 3);
  }
  /// To row `row` of `out`; unless it bypasses the caches, the next tile's is fetched.
  template <class Lanes>
  void put(int64_t row, int64_t j, V v, Lanes lanes) const {
    if (streams) return stream(out(row) + j, v);
    __builtin_prefetch(out(row + tile.m) + j, 1, 3);
    lanes.store(out(row) + j, v);
  }
  static const S* array(const void* p) { return static_cast<const S*>(p); }
  static S* array(void* p) { return static_cast<S*>(p); }

  void store() const {
    each_vector<T>(tile.n, [&](int64_t j, int, auto lanes) {
      for (int64_t i = 0; i < tile.m; ++i) lanes.store(out(i) + j, lanes.load(sums(i) + j));
    });
  }

  template <Activation activation>
  void activate() const {
    each_vector<T>(tile.n, [&](int64_t j, int, auto lanes) {
      const V shift = lanes.load(array(f.map.shift) + j);
      for (int64_t i = 0; i < tile.m; ++i) {
        V v = lanes.load(sums(i) + j) + shift;
        if (f.residual) {
          prefetch(f.residual, i, j);
          v += lanes.load(row_of(f.residual, i) + j);
        }
        put(i, j, activated_as<T>(v, activation), lanes);
      }
    });
  }

  void moments() const {
    each_vector<T>(tile.n, [&](int64_t j, int, auto lanes) {
      const V center = lanes.load(array(f.map.center) + j);
      V first = lanes.load(array(f.first) + j), second = lanes.load(array(f.second) + j);
      for (int64_t i = 0; i < tile.m; ++i) {
        const V v = lanes.load(sums(i) + j), distance = v - center;
        first += distance;
        second = fused(distance, distance, second);
        put(i, j, v, lanes);
      }
      lanes.store(array(f.first) + j, first);
      lanes.store(array(f.second) + j, second);
    });
  }

  template <Activation activation>
  void gradient() const {
    each_vector<T>(tile.n, [&](int64_t j, int, auto lanes) {
      const V a = lanes.load(array(f.map.scale) + j), b = lanes.load(array(f.map.shift) + j);
      const V center = lanes.load(array(f.map.center) + j);
      V first = lanes.load(array(f.first) + j), second = lanes.load(array(f.second) + j);
      for (int64_t i = 0; i < tile.m; ++i) {
        prefetch(f.x, i, j);
        const V x = lanes.load(row_of(f.x, i) + j);
        V dz = lanes.load(sums(i) + j);
        if (f.residual) dz += lanes.load(row_of(f.residual, i) + j);
        dz = through(dz, normalised(x, center, a, b), activation);
        first += dz;
        second = fused(dz, x - center, second);
        put(i, j, dz, lanes);
      }
      lanes.store(array(f.first) + j, first);
      lanes.store(array(f.second) + j, second);
    });
  }

  static void run(const SumTile& tile, const Epilogue& f) {
    const TileLoops loops{tile, f};
    switch (f.kind) {
      case Epilogue::Kind::store: loops.store(); break;
      case Epilogue::Kind::activate:
        as_constant(f.activation, [&](auto a) { loops.template activate<a()>(); });
        break;
      case Epilogue::Kind::moments: loops.moments(); break;
      case Epilogue::Kind::gradient:
        as_constant(f.map.activation, [&](auto a) { loops.template gradient<a()>(); });
        break;
    }
  }
  static constexpr TileKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, run};
  }
};

constexpr TileKernel kRecords[] = {
    TileLoops<bfloat16>::record(QUERN_NAMED("conv_tile_bf16"), DType::bf16),
#if !defined(__AVX512BF16__) && !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)  // they only round
    TileLoops<float>::record(QUERN_NAMED("conv_tile_f32"), DType::f32),
    TileLoops<double>::record(QUERN_NAMED("conv_tile_f64"), DType::f64),
#endif
};

}  // namespace

QUERN_KERNELS(TileKernel, conv_tile, kRecords)

}  // namespace quern::kernels
