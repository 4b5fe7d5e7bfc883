// The contract in its plainest form: one dot product an element of C. The oracle of the other
// kernels.
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

template <class T, class Acc, int kNr, int kKr, bool kOuter>
void run(const GemmTile& tile) {
  for (int64_t i = 0; i < tile.m; ++i) {
    for (int64_t j = 0; j < tile.n; ++j) {
      Acc sum = 0;
      for (int64_t l = 0; l < tile.batch; ++l) {
        const T* a = static_cast<const T*>(tile.a[l]) + i * (kOuter ? kKr : tile.lda);
        const T* b = static_cast<const T*>(tile.b[l]) + j * (kOuter ? 1 : kKr);
        for (int64_t p = 0; p < tile.k; ++p) {
          const int64_t a_at = kOuter ? p / kKr * tile.lda + p % kKr : p;
          const int64_t b_at = kOuter ? p * tile.ldb : p / kKr * kNr * kKr + p % kKr;
          sum += static_cast<Acc>(a[a_at]) * static_cast<Acc>(b[b_at]);
        }
      }
      Acc& c = static_cast<Acc*>(tile.c)[i * tile.ldc + j];
      c = tile.accumulate ? c + sum : sum;
    }
  }
}

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_8x16"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = 8,
     .nr = 16,
     .run = run<float, float, 16, 1, false>,
     .run_outer = run<float, float, 16, 1, true>},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_8x16k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = 8,
     .nr = 16,
     .kr = 2,
     .run = run<bfloat16, float, 16, 2, false>,
     .run_outer = run<bfloat16, float, 16, 2, true>},
    {.name = QUERN_NAMED("gemm_f64_f64_f64_8x8"),
     .isa = kIsa,
     .a = DType::f64,
     .mr = 8,
     .nr = 8,
     .run = run<double, double, 8, 1, false>,
     .run_outer = run<double, double, 8, 1, true>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
