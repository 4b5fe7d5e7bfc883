// 8×12 tiles by BFMMLA, which multiplies 2×4 by 4×2: 24 accumulators of two rows and two columns, six
// vectors for four rows of B, and one for two rows of A.
#include <arm_neon.h>

#include "quern/ops/kernels/gemm/gemm_records.h"
#include "quern/ops/kernels/gemm/gemm_rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 8, kNr = 12, kKr = 4;

template <int kRows>
struct Accumulators {
  static constexpr int kPairs = (kRows + 1) / 2;
  float32x4_t v[kPairs][6];  // rows 2i and 2i + 1 of columns 2j and 2j + 1

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) v[i][j] = vdupq_n_f32(0);
  }

  /// Four k of rows 2i and 2i + 1; a missing row is zero.
  __attribute__((always_inline)) static bfloat16x8_t load_pair(const bfloat16_t* a, int64_t lda,
                                                               int i) {
    const bfloat16x4_t row = vld1_bf16(a + 2 * i * lda);
    return vcombine_bf16(row,
                         2 * i + 1 < kRows ? vld1_bf16(a + (2 * i + 1) * lda) : vcreate_bf16(0));
  }

  __attribute__((always_inline)) void add(const bfloat16_t* a, int64_t lda, const bfloat16_t* b) {
    bfloat16x8_t columns[6];
#pragma GCC unroll 6
    for (int j = 0; j < 6; ++j) columns[j] = vld1q_bf16(b + 8 * j);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      const bfloat16x8_t rows = load_pair(a, lda, i);
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j) v[i][j] = vbfmmlaq_f32(v[i][j], rows, columns[j]);
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
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      if (tile.n == kNr) {
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) {
          const float32x4_t sum = row(r, j);
          vst1q_f32(c + 4 * j, tile.accumulate ? vaddq_f32(sum, vld1q_f32(c + 4 * j)) : sum);
        }
      } else {
        float sums[kNr];
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) vst1q_f32(sums + 4 * j, row(r, j));
        for (int64_t j = 0; j < tile.n; ++j) c[j] = tile.accumulate ? c[j] + sums[j] : sums[j];
      }
    }
  }
};

struct Bf16 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    Accumulators<kRows> c;
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const bfloat16_t*>(tile.a[i]);
      const auto* b = static_cast<const bfloat16_t*>(tile.b[i]);
      for (int64_t p = 0; p < tile.k; p += kKr, b += kKr * kNr) c.add(a + p, tile.lda, b);
    }
    c.store(tile);
  }
};

}  // namespace

constinit const GemmKernel gemm_bf16_bf16_f32_8x12k4_neon_bf16{
    "gemm_bf16_bf16_f32_8x12k4_neon_bf16",
    Isa::neon_bf16,
    DType::bf16,
    DType::bf16,
    DType::f32,
    kMr,
    kNr,
    kKr,
    kKr,
    dispatch_rows<Bf16>};

}  // namespace quern::kernels
