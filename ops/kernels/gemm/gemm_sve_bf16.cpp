// 6×4VL tiles by SVE's BFMMLA, which multiplies 2×4 by 4×2 in every 128 bits: 24 accumulators, three vectors
// for two rows of A each, repeated along the vector, and one for four rows of B. Each vector of A costs an
// operation that joins its rows; wider tiles have fewer, but divide channels worse.
#include <arm_sve.h>

#include "quern/ops/kernels/gemm/gemm_records.h"
#include "quern/ops/kernels/gemm/gemm_rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 6;

// Vectors of unknown length cannot be elements of an array, so they are spelled out; those of rows that
// kRows excludes vanish.
#define QUERN_EACH_COLUMN(Do) Do(0) Do(1) Do(2) Do(3) Do(4) Do(5) Do(6) Do(7)
#define QUERN_EACH_PAIR(Do) Do(0) Do(1) Do(2)

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
#define QUERN_ZERO(j) svfloat32_t c0##j = svdup_f32(0), c1##j = c0##j, c2##j = c0##j;
    QUERN_EACH_COLUMN(QUERN_ZERO)
    for (int64_t l = 0; l < tile.batch; ++l) {
      const auto* a = static_cast<const uint16_t*>(tile.a[l]);
      const auto* b = static_cast<const bfloat16_t*>(tile.b[l]);
      for (int64_t p = 0; p < tile.k; p += 4, a += 4, b += 16 * lanes) {
#define QUERN_LOAD(i)                                                                       \
  const svuint64_t even##i = 2 * (i) < kRows ? repeat(a + 2 * (i)*tile.lda) : svdup_u64(0); \
  const svuint64_t odd##i =                                                                 \
      2 * (i) + 1 < kRows ? repeat(a + (2 * (i) + 1) * tile.lda) : svdup_u64(0);            \
  const svbfloat16_t rows##i = svreinterpret_bf16_u64(svtrn1_u64(even##i, odd##i));
        QUERN_EACH_PAIR(QUERN_LOAD)
#define QUERN_ADD(j)                                                 \
  const svbfloat16_t b##j = svld1_vnum_bf16(all, b, j);              \
  c0##j = svbfmmla_f32(c0##j, rows0, b##j);                          \
  if constexpr (kRows > 2) c1##j = svbfmmla_f32(c1##j, rows1, b##j); \
  if constexpr (kRows > 4) c2##j = svbfmmla_f32(c2##j, rows2, b##j);
        QUERN_EACH_COLUMN(QUERN_ADD)
      }
    }
    auto* c = static_cast<float*>(tile.c);
    const auto store = [&](svfloat32_t lo, svfloat32_t hi, bool odd, float* row, int64_t column)
        __attribute__((always_inline)) {
      const svbool_t in = svwhilelt_b32_s64(column, tile.n);
      const svfloat64_t x = svreinterpret_f64_f32(lo), y = svreinterpret_f64_f32(hi);
      svfloat32_t sum = svreinterpret_f32_f64(odd ? svuzp2_f64(x, y) : svuzp1_f64(x, y));
      if (tile.accumulate) sum = svadd_f32_x(in, sum, svld1_f32(in, row + column));
      svst1_f32(in, row + column, sum);
    };
#define QUERN_STORE_ROW(i, odd)                   \
  if constexpr (2 * i + odd < kRows) {            \
    float* row = c + (2 * (i) + odd) * tile.ldc;  \
    store(c##i##0, c##i##1, odd, row, 0);         \
    store(c##i##2, c##i##3, odd, row, lanes);     \
    store(c##i##4, c##i##5, odd, row, 2 * lanes); \
    store(c##i##6, c##i##7, odd, row, 3 * lanes); \
  }
#define QUERN_STORE(i)  \
  QUERN_STORE_ROW(i, 0) \
  QUERN_STORE_ROW(i, 1)
    QUERN_EACH_PAIR(QUERN_STORE)
  }
};

}  // namespace

constinit const GemmKernel gemm_bf16_bf16_f32_6x4vlk4_sve_bf16{
    .name = "gemm_bf16_bf16_f32_6x4vlk4_sve_bf16",
    .isa = Isa::sve_bf16,
    .a = DType::bf16,
    .b = DType::bf16,
    .c = DType::f32,
    .mr = kMr,
    .nr = 16,
    .kr = 4,
    .k_multiple = 4,
    .run = dispatch_rows<Bf16, kMr>,
    .scalable = true};

}  // namespace quern::kernels
