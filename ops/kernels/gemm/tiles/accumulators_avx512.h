// What the AVX-512 tiles share: 14×32 accumulators, 28 of the 32 registers; two more hold a row of
// B and one an element of A for all columns.
#pragma once
#include <immintrin.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 14, kNr = 32;

/// The row from which on a tile may jump.
constexpr int half(int rows) { return (rows + 1) / 2; }

/// Goes from row to row of a tile in a tensor.
template <class T, int kRows>
struct Walk {
  T* at;
  int64_t stride, jump;

  __attribute__((always_inline)) void after(int r) {
    at += r + 1 == half(kRows) ? stride + jump : stride;
  }
};

template <int kRows>
struct Accumulators {
  __m512 lo[kRows], hi[kRows];  // columns 0..15, 16..31

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) lo[r] = hi[r] = _mm512_setzero_ps();
  }

  /// C from a row on, all columns of it.
  __attribute__((always_inline)) void add(const GemmTile& tile, int64_t first_row) {
    auto c = walk<const float>(tile, first_row);
#pragma GCC unroll 14
    for (int r = 0; r < kRows; c.after(r++)) {
      lo[r] = _mm512_add_ps(lo[r], _mm512_loadu_ps(c.at));
      hi[r] = _mm512_add_ps(hi[r], _mm512_loadu_ps(c.at + 16));
    }
  }

  __attribute__((always_inline)) void store(const GemmTile& tile, int64_t first_row = 0) {
    const uint32_t columns = tile.n >= kNr ? ~0u : (1u << tile.n) - 1;
    const auto in_lo = static_cast<__mmask16>(columns),
               in_hi = static_cast<__mmask16>(columns >> 16);
    if (tile.accumulate) {
      auto c = walk<const float>(tile, first_row);
#pragma GCC unroll 14
      for (int r = 0; r < kRows; c.after(r++)) {
        lo[r] = _mm512_add_ps(lo[r], _mm512_maskz_loadu_ps(in_lo, c.at));
        hi[r] = _mm512_add_ps(hi[r], _mm512_maskz_loadu_ps(in_hi, c.at + 16));
      }
    }
    auto c = walk<float>(tile, first_row);
#pragma GCC unroll 14
    for (int r = 0; r < kRows; c.after(r++)) {
      _mm512_mask_storeu_ps(c.at, in_lo, lo[r]);
      _mm512_mask_storeu_ps(c.at + 16, in_hi, hi[r]);
    }
  }

 private:
  template <class T>
  __attribute__((always_inline)) static Walk<T, kRows> walk(const GemmTile& tile, int64_t row) {
    return {static_cast<T*>(tile.c) + row * tile.ldc, tile.ldc, tile.jump_c};
  }
};

}  // namespace
}  // namespace quern::kernels
