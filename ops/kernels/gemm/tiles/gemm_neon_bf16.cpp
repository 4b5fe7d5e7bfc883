// 4×24 tiles by BFMMLA, which multiplies 2×4 by 4×2: 24 accumulators of two rows and two columns,
// two vectors for two rows of A each, and one for four rows of B. Each vector of A costs an
// operation that joins its rows, so tiles are wide; the last of a panel computes only those groups
// of 8 columns that it has.
#include <arm_neon.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 4, kNr = 24, kKr = 4, kGroup = 8;

template <int kRows, int kColumns>
struct Accumulators {
  static constexpr int kPairs = (kRows + 1) / 2;
  float32x4_t v[kPairs][kColumns / 2];  // rows 2i and 2i + 1 of columns 2j and 2j + 1

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 12
      for (int j = 0; j < kColumns / 2; ++j) v[i][j] = vdupq_n_f32(0);
  }

  /// Four k of rows 2i and 2i + 1; a missing row is zero.
  __attribute__((always_inline)) static bfloat16x8_t load_pair(const bfloat16_t* a, int64_t lda,
                                                               int i) {
    const auto row = [=](int r) {
      const uint64x1_t four =
          r < kRows ? vreinterpret_u64_bf16(vld1_bf16(a + r * lda)) : vdup_n_u64(0);
      return vcombine_u64(four, vdup_n_u64(0));
    };
    return vreinterpretq_bf16_u64(vzip1q_u64(row(2 * i), row(2 * i + 1)));
  }

  __attribute__((always_inline)) void add(const bfloat16_t* a, int64_t lda, const bfloat16_t* b) {
    bfloat16x8_t rows[kPairs];
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; ++i) rows[i] = load_pair(a, lda, i);
#pragma GCC unroll 12
    for (int j = 0; j < kColumns / 2; ++j) {
      const bfloat16x8_t columns = vld1q_bf16(b + 8 * j);
#pragma GCC unroll 2
      for (int i = 0; i < kPairs; ++i) v[i][j] = vbfmmlaq_f32(v[i][j], rows[i], columns);
    }
  }

  /// Columns 4j..4j+3 of row r.
  __attribute__((always_inline)) float32x4_t row(int r, int j) const {
    const float64x2_t lo = vreinterpretq_f64_f32(v[r / 2][2 * j]),
                      hi = vreinterpretq_f64_f32(v[r / 2][2 * j + 1]);
    return vreinterpretq_f32_f64(r % 2 == 0 ? vzip1q_f64(lo, hi) : vzip2q_f64(lo, hi));
  }

  __attribute__((always_inline)) void store(const GemmTile& tile) const {
    auto* c = static_cast<float*>(tile.c);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      if (tile.n == kColumns) {
#pragma GCC unroll 6
        for (int j = 0; j < kColumns / 4; ++j) {
          const float32x4_t sum = row(r, j);
          vst1q_f32(c + 4 * j, tile.accumulate ? vaddq_f32(sum, vld1q_f32(c + 4 * j)) : sum);
        }
      } else {
        float sums[kColumns];
#pragma GCC unroll 6
        for (int j = 0; j < kColumns / 4; ++j) vst1q_f32(sums + 4 * j, row(r, j));
        for (int64_t j = 0; j < tile.n; ++j) c[j] = tile.accumulate ? c[j] + sums[j] : sums[j];
      }
    }
  }
};

template <int kRows>
struct Bf16Rows {
  template <int kGroups>
  static void run(const GemmTile& tile) {
    Accumulators<kRows, kGroups * kGroup> c;
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const bfloat16_t*>(tile.a[i]);
      const auto* b = static_cast<const bfloat16_t*>(tile.b[i]);
      for (int64_t p = 0; p < tile.k; p += kKr, b += kKr * kNr) c.add(a + p, tile.lda, b);
    }
    c.store(tile);
  }
};

struct Bf16 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    dispatch_count<Bf16Rows<kRows>, kNr / kGroup>((tile.n + kGroup - 1) / kGroup, tile);
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_4x24k4"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = kMr,
     .nr = kNr,
     .kr = kKr,
     .run = dispatch_rows<Bf16, kMr>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
