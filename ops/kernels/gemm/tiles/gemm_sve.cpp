// 8×3VL tiles in SVE of any vector length: 24 accumulators of the 32 registers, three for a row of
// B, the others for elements of A in all lanes. (FMLA by an element would do without, but costs two
// operations on some CPUs.)
#include <arm_sve.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 8;

// Vectors of unknown length cannot be elements of an array, so rows are spelled out; those that
// kRows excludes vanish.
#define QUERN_EACH_ROW(Do) Do(0) Do(1) Do(2) Do(3) Do(4) Do(5) Do(6) Do(7)

template <bool kOuter>
struct F32 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    const svbool_t all = svptrue_b32();
    const auto lanes = static_cast<int64_t>(svcntw());
#define QUERN_ZERO(r) svfloat32_t c##r##0 = svdup_f32(0), c##r##1 = c##r##0, c##r##2 = c##r##0;
    QUERN_EACH_ROW(QUERN_ZERO)
    const auto* prefetch = static_cast<const char*>(tile.prefetch);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const float*>(tile.a[i]);
      const auto* b = static_cast<const float*>(tile.b[i]);
      const int64_t a_step = kOuter ? tile.lda : 1, row = kOuter ? 1 : tile.lda;
      const int64_t b_step = kOuter ? tile.ldb : 3 * lanes;
      for (int64_t p = 0; p < tile.k; ++p, a += a_step, b += b_step) {
        if constexpr (kOuter) {
          __builtin_prefetch(prefetch, 0, 2);
          __builtin_prefetch(prefetch + 64, 0, 2);
          prefetch += tile.prefetch_step;
        }
        const svfloat32_t b0 = svld1_f32(all, b), b1 = svld1_vnum_f32(all, b, 1),
                          b2 = svld1_vnum_f32(all, b, 2);
#define QUERN_ADD(r)                             \
  if constexpr (r < kRows) {                     \
    const svfloat32_t x = svdup_f32(a[(r)*row]); \
    c##r##0 = svmla_f32_x(all, c##r##0, b0, x);  \
    c##r##1 = svmla_f32_x(all, c##r##1, b1, x);  \
    c##r##2 = svmla_f32_x(all, c##r##2, b2, x);  \
  }
        QUERN_EACH_ROW(QUERN_ADD)
      }
    }
    auto* c = static_cast<float*>(tile.c);
    const svbool_t in0 = svwhilelt_b32_s64(0, tile.n), in1 = svwhilelt_b32_s64(lanes, tile.n),
                   in2 = svwhilelt_b32_s64(2 * lanes, tile.n);
#define QUERN_STORE_PART(r, j)                                                         \
  if (tile.accumulate)                                                                 \
    c##r##j = svadd_f32_x(in##j, c##r##j, svld1_vnum_f32(in##j, c + (r)*tile.ldc, j)); \
  svst1_vnum_f32(in##j, c + (r)*tile.ldc, j, c##r##j);
#define QUERN_STORE(r)       \
  if constexpr (r < kRows) { \
    QUERN_STORE_PART(r, 0)   \
    QUERN_STORE_PART(r, 1)   \
    QUERN_STORE_PART(r, 2)   \
  }
    QUERN_EACH_ROW(QUERN_STORE)
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_8x3vl"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = kMr,
     .nr = 12,
     .run = dispatch_rows<F32<false>, kMr>,
     .run_outer = dispatch_rows<F32<true>, kMr>,
     .scalable = true},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
