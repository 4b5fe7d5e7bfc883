// 4×6VL tiles by SVE's BFMMLA, which multiplies 2×4 by 4×2 in every 128 bits: 24 accumulators, two
// vectors for two rows of A each, repeated along the vector, and one for four rows of B. Each
// vector of A costs an operation that joins its rows, so tiles are wide; the last of a panel
// computes only as many VL of columns as it has.
#include <arm_sve.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 4, kVectors = 6;

// Vectors of unknown length cannot be elements of an array, so they are spelled out; those of rows
// and columns that kRows and kColumns exclude vanish.
#define QUERN_EACH_COLUMN(Do) Do(0) Do(1) Do(2) Do(3) Do(4) Do(5)

/// Four k of a row, in all lanes.
__attribute__((always_inline)) inline svuint64_t repeat(const uint16_t* a) {
  uint64_t four;
  __builtin_memcpy(&four, a, sizeof four);
  return svdup_u64(four);
}

/// Four k of two rows; the second may be missing.
template <bool kBoth>
__attribute__((always_inline)) inline svbfloat16_t load_pair(const uint16_t* a, int64_t lda) {
  const svuint64_t second = kBoth ? repeat(a + lda) : svdup_u64(0);
  return svreinterpret_bf16_u64(svtrn1_u64(repeat(a), second));
}

/// VL columns, from the sums of two rows.
__attribute__((always_inline)) inline void store(const GemmTile& tile, int row, int64_t column,
                                                 svfloat32_t lo, svfloat32_t hi) {
  const svbool_t in = svwhilelt_b32_s64(column, tile.n);
  const svfloat64_t x = svreinterpret_f64_f32(lo), y = svreinterpret_f64_f32(hi);
  svfloat32_t sum = svreinterpret_f32_f64(row % 2 == 0 ? svuzp1_f64(x, y) : svuzp2_f64(x, y));
  float* c = static_cast<float*>(tile.c) + row * tile.ldc + column;
  if (tile.accumulate) sum = svadd_f32_x(in, sum, svld1_f32(in, c));
  svst1_f32(in, c, sum);
}

template <int kRows>
struct Bf16Rows {
  /// Columns are counted in VL: the sums of two rows of one fill two vectors.
  template <int kColumns>
  static void run(const GemmTile& tile) {
    const svbool_t all = svptrue_b16();
    const auto lanes = static_cast<int64_t>(svcntw());
#define QUERN_ZERO(j) \
  svfloat32_t lo0##j = svdup_f32(0), hi0##j = lo0##j, lo2##j = lo0##j, hi2##j = lo0##j;
    QUERN_EACH_COLUMN(QUERN_ZERO)
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const bfloat16_t*>(tile.b[i]);
      for (int64_t p = 0; p < tile.k; p += 4, a += 4, b += 4 * kVectors * lanes) {
        const svbfloat16_t rows0 = load_pair<(kRows > 1)>(a, tile.lda);
        svbfloat16_t rows2 = rows0;
        if constexpr (kRows > 2) rows2 = load_pair<(kRows > 3)>(a + 2 * tile.lda, tile.lda);
#define QUERN_ADD(j)                                                   \
  if constexpr (j < kColumns) {                                        \
    const svbfloat16_t lo = svld1_vnum_bf16(all, b, 2 * j),            \
                       hi = svld1_vnum_bf16(all, b, 2 * j + 1);        \
    lo0##j = svbfmmla_f32(lo0##j, rows0, lo);                          \
    hi0##j = svbfmmla_f32(hi0##j, rows0, hi);                          \
    if constexpr (kRows > 2) lo2##j = svbfmmla_f32(lo2##j, rows2, lo); \
    if constexpr (kRows > 2) hi2##j = svbfmmla_f32(hi2##j, rows2, hi); \
  }
        QUERN_EACH_COLUMN(QUERN_ADD)
      }
    }
#define QUERN_STORE(j)                                                 \
  if constexpr (j < kColumns) {                                        \
    store(tile, 0, j* lanes, lo0##j, hi0##j);                          \
    if constexpr (kRows > 1) store(tile, 1, j* lanes, lo0##j, hi0##j); \
    if constexpr (kRows > 2) store(tile, 2, j* lanes, lo2##j, hi2##j); \
    if constexpr (kRows > 3) store(tile, 3, j* lanes, lo2##j, hi2##j); \
  }
    QUERN_EACH_COLUMN(QUERN_STORE)
  }
};

struct Bf16 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    const auto lanes = static_cast<int64_t>(svcntw());
    dispatch_count<Bf16Rows<kRows>, kVectors>((tile.n + lanes - 1) / lanes, tile);
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_4x6vlk4"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = kMr,
     .nr = 4 * kVectors,
     .kr = 4,
     .run = dispatch_rows<Bf16, kMr>,
     .scalable = true},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
