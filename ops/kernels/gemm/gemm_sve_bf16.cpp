// 8×3VL tiles by SVE's BFMMLA, which multiplies 2×4 by 4×2 in every 128 bits: 24 accumulators, six vectors
// for four rows of B, and one for two rows of A, repeated along the vector.
#include <arm_sve.h>

#include "quern/ops/kernels/gemm/gemm_records.h"
#include "quern/ops/kernels/gemm/gemm_rows.h"

namespace quern::kernels {
namespace {

// Vectors of unknown length cannot be elements of an array, so pairs of rows are spelled out; those that
// kRows excludes vanish.
#define QUERN_EACH_PAIR(Do) Do(0) Do(1) Do(2) Do(3)

struct Bf16 {
  /// Four k of a row, in all lanes.
  __attribute__((always_inline)) static svuint64_t repeat(const uint16_t* a) {
    uint64_t four;
    __builtin_memcpy(&four, a, sizeof four);
    return svdup_u64(four);
  }

  template <int kRows>
  static void run(const GemmTile& tile) {
    const svbool_t all = svptrue_b16();
    const auto lanes = static_cast<int64_t>(svcntw());
#define QUERN_ZERO(i)                                                                          \
  svfloat32_t c##i##0 = svdup_f32(0), c##i##1 = c##i##0, c##i##2 = c##i##0, c##i##3 = c##i##0, \
              c##i##4 = c##i##0, c##i##5 = c##i##0;
    QUERN_EACH_PAIR(QUERN_ZERO)
    for (int64_t l = 0; l < tile.batch; ++l) {
      const auto* a = static_cast<const uint16_t*>(tile.a[l]);
      const auto* b = static_cast<const bfloat16_t*>(tile.b[l]);
      for (int64_t p = 0; p < tile.k; p += 4, a += 4, b += 12 * lanes) {
        const svbfloat16_t b0 = svld1_bf16(all, b), b1 = svld1_vnum_bf16(all, b, 1),
                           b2 = svld1_vnum_bf16(all, b, 2), b3 = svld1_vnum_bf16(all, b, 3),
                           b4 = svld1_vnum_bf16(all, b, 4), b5 = svld1_vnum_bf16(all, b, 5);
#define QUERN_ADD(i)                                                                      \
  if constexpr (2 * i < kRows) {                                                          \
    const svuint64_t even = repeat(a + 2 * (i)*tile.lda);                                 \
    const svuint64_t odd =                                                                \
        2 * (i) + 1 < kRows ? repeat(a + (2 * (i) + 1) * tile.lda) : svdup_u64(0);        \
    const svbfloat16_t rows = svreinterpret_bf16_u64(svtrn1_u64(even, odd));              \
    c##i##0 = svbfmmla_f32(c##i##0, rows, b0), c##i##1 = svbfmmla_f32(c##i##1, rows, b1); \
    c##i##2 = svbfmmla_f32(c##i##2, rows, b2), c##i##3 = svbfmmla_f32(c##i##3, rows, b3); \
    c##i##4 = svbfmmla_f32(c##i##4, rows, b4), c##i##5 = svbfmmla_f32(c##i##5, rows, b5); \
  }
        QUERN_EACH_PAIR(QUERN_ADD)
      }
    }
    auto* c = static_cast<float*>(tile.c);
    const svbool_t in0 = svwhilelt_b32_s64(0, tile.n), in1 = svwhilelt_b32_s64(lanes, tile.n),
                   in2 = svwhilelt_b32_s64(2 * lanes, tile.n);
    const auto store = [&](svfloat32_t lo, svfloat32_t hi, bool odd, svbool_t in, float* to)
        __attribute__((always_inline)) {
      const svfloat64_t x = svreinterpret_f64_f32(lo), y = svreinterpret_f64_f32(hi);
      svfloat32_t sum = svreinterpret_f32_f64(odd ? svuzp2_f64(x, y) : svuzp1_f64(x, y));
      if (tile.accumulate) sum = svadd_f32_x(in, sum, svld1_f32(in, to));
      svst1_f32(in, to, sum);
    };
#define QUERN_STORE_ROW(i, odd)                        \
  if constexpr (2 * i + odd < kRows) {                 \
    float* to = c + (2 * (i) + odd) * tile.ldc;        \
    store(c##i##0, c##i##1, odd, in0, to);             \
    store(c##i##2, c##i##3, odd, in1, to + lanes);     \
    store(c##i##4, c##i##5, odd, in2, to + 2 * lanes); \
  }
#define QUERN_STORE(i)  \
  QUERN_STORE_ROW(i, 0) \
  QUERN_STORE_ROW(i, 1)
    QUERN_EACH_PAIR(QUERN_STORE)
  }
};

}  // namespace

constinit const GemmKernel gemm_bf16_bf16_f32_8x3vlk4_sve_bf16{
    .name = "gemm_bf16_bf16_f32_8x3vlk4_sve_bf16",
    .isa = Isa::sve_bf16,
    .a = DType::bf16,
    .b = DType::bf16,
    .c = DType::f32,
    .mr = 8,
    .nr = 12,
    .kr = 4,
    .k_multiple = 4,
    .run = dispatch_rows<Bf16>,
    .scalable = true};

}  // namespace quern::kernels
