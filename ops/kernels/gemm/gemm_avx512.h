// What the AVX-512 tiles share: 14×32 accumulators, 28 of the 32 registers; two more hold a row of
// B and one an element of A for all columns.
#pragma once
#include <immintrin.h>

#include "quern/ops/kernels/gemm/gemm_records.h"
#include "quern/ops/kernels/gemm/gemm_rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 14, kNr = 32;

/// The row from which on a tile may jump.
constexpr int half(int rows) { return (rows + 1) / 2; }

template <int kRows>
struct Accumulators {
  __m512 lo[kRows], hi[kRows];  // columns 0..15, 16..31

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) lo[r] = hi[r] = _mm512_setzero_ps();
  }
  /// Zero. The C that they will be added to is fetched meanwhile.
  __attribute__((always_inline)) explicit Accumulators(const GemmTile& tile) : Accumulators() {
    const auto* row = static_cast<const float*>(tile.c);
    for (int r = 0; tile.accumulate && r < kRows; ++r, row += tile.ldc) {
      _mm_prefetch(row, _MM_HINT_T0);
      _mm_prefetch(row + 16, _MM_HINT_T0);
    }
  }

  /// From row r of C to the next.
  __attribute__((always_inline)) static int64_t step(int r, const GemmTile& tile) {
    return tile.ldc + (r + 1 == half(kRows) ? tile.jump_c : 0);
  }

  /// C from a row on, all columns of it.
  __attribute__((always_inline)) void add(const GemmTile& tile, int64_t first_row) {
    const auto* row = static_cast<const float*>(tile.c) + first_row * tile.ldc;
#pragma GCC unroll 14
    for (int r = 0; r < kRows; row += step(r++, tile)) {
      lo[r] = _mm512_add_ps(lo[r], _mm512_loadu_ps(row));
      hi[r] = _mm512_add_ps(hi[r], _mm512_loadu_ps(row + 16));
    }
  }

  __attribute__((always_inline)) void store(const GemmTile& tile, int64_t first_row = 0) {
    const uint32_t columns = tile.n >= kNr ? ~0u : (1u << tile.n) - 1;
    const auto in_lo = static_cast<__mmask16>(columns),
               in_hi = static_cast<__mmask16>(columns >> 16);
    auto* c = static_cast<float*>(tile.c) + first_row * tile.ldc;
    if (tile.accumulate) {
      const float* row = c;
#pragma GCC unroll 14
      for (int r = 0; r < kRows; row += step(r++, tile)) {
        lo[r] = _mm512_add_ps(lo[r], _mm512_maskz_loadu_ps(in_lo, row));
        hi[r] = _mm512_add_ps(hi[r], _mm512_maskz_loadu_ps(in_hi, row + 16));
      }
    }
#pragma GCC unroll 14
    for (int r = 0; r < kRows; c += step(r++, tile)) {
      _mm512_mask_storeu_ps(c, in_lo, lo[r]);
      _mm512_mask_storeu_ps(c + 16, in_hi, hi[r]);
    }
  }
};

}  // namespace
}  // namespace quern::kernels
