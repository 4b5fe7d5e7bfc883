// The tile kernels spelled out: an element after the other.
#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/conv/conv_kernel.h"
#include "quern/ops/kernels/conv/epilogue/tile_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

template <class T>
struct Naive {
  using S = Accumulator<T>;

  static S element(const void* tensor, int64_t i) {
    return static_cast<S>(static_cast<const T*>(tensor)[i]);
  }
  static const S* array(const void* p) { return static_cast<const S*>(p); }
  static S* array(void* p) { return static_cast<S*>(p); }

  /// What element (i, j), whose sum is v, becomes.
  static S complete(const Epilogue& f, S v, int64_t i, int64_t j) {
    using enum Epilogue::Kind;
    if (f.kind == activate) v += array(f.map.shift)[j];
    if ((f.kind == activate || f.kind == gradient) && f.residual)
      v += element(f.residual, i * f.stride + j);
    if (f.kind == activate) v = activated(v, f.activation);
    if (f.kind == moments) {
      const S distance = v - array(f.map.center)[j];
      array(f.first)[j] += distance;
      array(f.second)[j] += distance * distance;
    }
    if (f.kind == gradient) {
      const S distance = element(f.x, i * f.stride + j) - array(f.map.center)[j];
      v = through(v, distance * array(f.map.scale)[j] + array(f.map.shift)[j], f.map.activation);
      array(f.first)[j] += v;
      array(f.second)[j] += v * distance;
    }
    return v;
  }
  static void run(const SumTile& tile, const Epilogue& f) {
    for (int64_t i = 0; i < tile.m; ++i)
      for (int64_t j = 0; j < tile.n; ++j)
        static_cast<T*>(f.out)[i * f.stride + j] = static_cast<T>(
            complete(f, static_cast<const S*>(tile.sums)[i * tile.stride + j], i, j));
  }
  static constexpr TileKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, run};
  }
};

constexpr TileKernel kRecords[] = {
    Naive<float>::record(QUERN_NAMED("conv_tile_f32"), DType::f32),
    Naive<bfloat16>::record(QUERN_NAMED("conv_tile_bf16"), DType::bf16),
    Naive<double>::record(QUERN_NAMED("conv_tile_f64"), DType::f64),
};

}  // namespace

QUERN_KERNELS(TileKernel, conv_tile, kRecords)

}  // namespace quern::kernels
