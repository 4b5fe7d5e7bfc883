// Tiles for any machine, in the compilers' generic vectors of 16 bytes (left to themselves they
// vectorise the loop over k): eight accumulators, two vectors of B and one of A fit the 16
// registers of SSE2.
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 4;

template <class Acc>
struct Lanes {
  static constexpr int count = 16 / sizeof(Acc);
  typedef Acc Vector __attribute__((vector_size(16)));

  template <class T>
  static Vector load(const T* from) {
    Vector v;
    for (int i = 0; i < count; ++i) v[i] = static_cast<Acc>(from[i]);
    return v;
  }
};

template <class T, class Acc>
struct Product {
  template <int kRows>
  static void run(const GemmTile& tile) {
    using Vector = typename Lanes<Acc>::Vector;
    constexpr int kLanes = Lanes<Acc>::count, kNr = 2 * kLanes;
    Vector lo[kRows] = {}, hi[kRows] = {};
    for (int64_t i = 0; i < tile.batch; ++i) {
      const T* a = static_cast<const T*>(tile.a[i]);
      const T* b = static_cast<const T*>(tile.b[i]);
      for (int64_t p = 0; p < tile.k; ++p, b += kNr) {
        const Vector b_lo = Lanes<Acc>::load(b), b_hi = Lanes<Acc>::load(b + kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const auto x = static_cast<Acc>(a[r * tile.lda + p]);
          lo[r] += x * b_lo;
          hi[r] += x * b_hi;
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      Acc* c = static_cast<Acc*>(tile.c) + r * tile.ldc;
      for (int64_t j = 0; j < tile.n; ++j) {
        const Acc sum = j < kLanes ? lo[r][j] : hi[r][j - kLanes];
        c[j] = tile.accumulate ? c[j] + sum : sum;
      }
    }
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_4x8"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = kMr,
     .nr = 8,
     .run = dispatch_rows<Product<float, float>, kMr>},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_4x8"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = kMr,
     .nr = 8,
     .run = dispatch_rows<Product<bfloat16, float>, kMr>},
    {.name = QUERN_NAMED("gemm_f64_f64_f64_4x4"),
     .isa = kIsa,
     .a = DType::f64,
     .mr = kMr,
     .nr = 4,
     .run = dispatch_rows<Product<double, double>, kMr>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
