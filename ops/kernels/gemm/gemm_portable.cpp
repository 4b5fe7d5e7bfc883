// Tiles in plain C++: loops of fixed size over columns, which compilers turn into vectors of
// whatever the baseline has. Eight accumulators of 16 bytes, two of B and one of A fit the 16
// registers of SSE2.
#include "quern/ops/kernels/gemm/gemm_records.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 4;

template <class T, class Acc, int kNr, int kRows>
void run(const GemmTile& tile) {
  Acc c[kRows][kNr] = {};
  for (int64_t i = 0; i < tile.batch; ++i) {
    const T* a = static_cast<const T*>(tile.a[i]);
    const T* b = static_cast<const T*>(tile.b[i]);
    for (int64_t p = 0; p < tile.k; ++p, b += kNr) {
      for (int r = 0; r < kRows; ++r) {
        const auto x = static_cast<Acc>(a[r * tile.lda + p]);
        for (int j = 0; j < kNr; ++j) c[r][j] += x * static_cast<Acc>(b[j]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    Acc* to = static_cast<Acc*>(tile.c) + r * tile.ldc;
    for (int64_t j = 0; j < tile.n; ++j) to[j] = tile.accumulate ? to[j] + c[r][j] : c[r][j];
  }
}

/// A tile with fewer rows neither reads nor writes those that are missing.
template <class T, class Acc, int kNr>
void dispatch_rows(const GemmTile& tile) {
  switch (tile.m) {
    case 1:
      return run<T, Acc, kNr, 1>(tile);
    case 2:
      return run<T, Acc, kNr, 2>(tile);
    case 3:
      return run<T, Acc, kNr, 3>(tile);
    default:
      return run<T, Acc, kNr, kMr>(tile);
  }
}

}  // namespace

constinit const GemmKernel gemm_f32_f32_f32_4x8_portable{"gemm_f32_f32_f32_4x8_portable",
                                                         Isa::portable,
                                                         DType::f32,
                                                         DType::f32,
                                                         DType::f32,
                                                         kMr,
                                                         8,
                                                         1,
                                                         1,
                                                         dispatch_rows<float, float, 8>};
constinit const GemmKernel gemm_bf16_bf16_f32_4x8_portable{"gemm_bf16_bf16_f32_4x8_portable",
                                                           Isa::portable,
                                                           DType::bf16,
                                                           DType::bf16,
                                                           DType::f32,
                                                           kMr,
                                                           8,
                                                           1,
                                                           1,
                                                           dispatch_rows<bfloat16, float, 8>};
constinit const GemmKernel gemm_f64_f64_f64_4x4_portable{"gemm_f64_f64_f64_4x4_portable",
                                                         Isa::portable,
                                                         DType::f64,
                                                         DType::f64,
                                                         DType::f64,
                                                         kMr,
                                                         4,
                                                         1,
                                                         1,
                                                         dispatch_rows<double, double, 4>};

}  // namespace quern::kernels
