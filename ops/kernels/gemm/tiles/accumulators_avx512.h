// What the AVX-512 tiles share: 14×32 accumulators, 28 of the 32 registers; two more hold a row of
// B and one an element of A for all columns.
#pragma once
#include <immintrin.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 14, kNr = 32;
constexpr int kNarrowMr = 16;  // one register a row

/// The columns of a tile that there are; others are neither read nor written. (Under a mask, loads
/// and stores take no longer.)
struct InColumns {
  __mmask16 lo, hi;  // 0..15, 16..31

  explicit InColumns(int64_t n) {
    const uint32_t all = n >= kNr ? ~0u : (1u << n) - 1;
    lo = static_cast<__mmask16>(all), hi = static_cast<__mmask16>(all >> 16);
  }
};

// Words of a and b in turn, of each four the first two; the last two.
inline __m512 interleave_lo(__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); }
inline __m512 interleave_hi(__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); }
inline __m512i interleave_lo(__m512i a, __m512i b) { return _mm512_unpacklo_epi32(a, b); }
inline __m512i interleave_hi(__m512i a, __m512i b) { return _mm512_unpackhi_epi32(a, b); }
/// a and b again.
inline __m512 evens(__m512 lo, __m512 hi) { return _mm512_shuffle_ps(lo, hi, 0x88); }
inline __m512 odds(__m512 lo, __m512 hi) { return _mm512_shuffle_ps(lo, hi, 0xdd); }

template <int kRows>
struct Accumulators {
  __m512 lo[kRows], hi[kRows];  // columns 0..15, 16..31

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) lo[r] = hi[r] = _mm512_setzero_ps();
  }

  /// Of up to 16 columns: lo becomes their sums, of which lo and hi have had two halves,
  /// interleaved.
  __attribute__((always_inline)) void join_halves() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) lo[r] = _mm512_add_ps(evens(lo[r], hi[r]), odds(lo[r], hi[r]));
  }

  /// C from a row on; kHalf: of up to 16 columns.
  template <bool kHalf>
  __attribute__((always_inline)) void add(const GemmTile& tile, int64_t first_row) {
    const InColumns in(tile.n);
    const float* c = row_of_c(tile, first_row);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      lo[r] = _mm512_add_ps(lo[r], _mm512_maskz_loadu_ps(in.lo, c));
      if constexpr (!kHalf) hi[r] = _mm512_add_ps(hi[r], _mm512_maskz_loadu_ps(in.hi, c + 16));
    }
  }

  template <bool kHalf = false>
  __attribute__((always_inline)) void store(const GemmTile& tile, int64_t first_row = 0) {
    if (tile.accumulate) add<kHalf>(tile, first_row);
    const InColumns in(tile.n);
    float* c = row_of_c(tile, first_row);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      _mm512_mask_storeu_ps(c, in.lo, lo[r]);
      if constexpr (!kHalf) _mm512_mask_storeu_ps(c + 16, in.hi, hi[r]);
    }
  }

 private:
  __attribute__((always_inline)) static float* row_of_c(const GemmTile& tile, int64_t row) {
    return static_cast<float*>(tile.c) + row * tile.ldc;
  }
};

}  // namespace
}  // namespace quern::kernels
