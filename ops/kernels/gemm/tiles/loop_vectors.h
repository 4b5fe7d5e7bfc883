// What the tiles of AVX2 and Neon share: accumulators of kMr rows by kVectors vectors, of f32, and
// of bf16, which has no products there.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

/// Isa has: a Vector of kLanes f32; load; fma, which adds an element of A times a row of B to the
/// sums; store, of the first n lanes (none, where n is not positive); Pairs, a vector of two bf16 a
/// lane; load_pairs, even and odd, its halves as f32; widen, which makes f32 of kLanes bf16.
template <class Isa, int kRows>
struct VectorSums {
  using Vector = typename Isa::Vector;
  static constexpr int kVectors = Isa::kVectors;
  Vector of[kRows][kVectors] = {};

  /// += a column of A, its elements `stride` apart, times a row of B: vector v is row(v).
  template <class Row>
  __attribute__((always_inline)) void add_outer(const float* a, int64_t stride, Row row) {
    Vector b[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b[v] = row(v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) of[r][v] = Isa::fma(a + r * stride, b[v], of[r][v]);
    }
  }

  __attribute__((always_inline)) void store(const GemmTile& tile) const {
    auto* c = static_cast<float*>(tile.c);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int first = v * Isa::kLanes;
        Isa::store(c + first, of[r][v], tile.n - first, tile.accumulate);
      }
    }
  }
};

template <class Isa, bool kOuter>
struct F32Tile {
  template <int kRows>
  static void run(const GemmTile& tile) {
    VectorSums<Isa, kRows> sums;
    const auto* prefetch = static_cast<const char*>(tile.prefetch);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const float*>(tile.a[i]);
      const auto* b = static_cast<const float*>(tile.b[i]);
      const int64_t ldb = kOuter ? tile.ldb : Isa::kNr;
      for (int64_t p = 0; p < tile.k; ++p, b += ldb) {
        if constexpr (kOuter) {
          __builtin_prefetch(prefetch, 0, 2);
          __builtin_prefetch(prefetch + 64, 0, 2);
          prefetch += tile.prefetch_step;
        }
        const auto row = [&](int v) { return Isa::load(b + v * Isa::kLanes); };
        sums.add_outer(a + (kOuter ? p * tile.lda : p), kOuter ? 1 : tile.lda, row);
      }
    }
    sums.store(tile);
  }
};

/// bf16 as the upper halves of f32: A is widened to a block of f32 first, so that the inner loop
/// takes its elements from memory; of the pairs of B one shift gives the even k, one mask the odd.
template <class Isa>
struct Bf16Tile {
  static constexpr int kBlock = 128;  // up to 4 KiB of f32: beside a panel of B in L1

  static void widen(const uint16_t* a, int64_t k, float* wide) {
    int64_t p = 0;
    for (; p + Isa::kLanes <= k; p += Isa::kLanes) Isa::widen(a + p, wide + p);
    for (; p < k; ++p) {
      const uint32_t bits = static_cast<uint32_t>(a[p]) << 16;
      __builtin_memcpy(wide + p, &bits, sizeof bits);
    }
  }

  template <int kRows>
  static void run(const GemmTile& tile) {
    alignas(32) float wide[kRows][kBlock];
    VectorSums<Isa, kRows> sums;
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const uint16_t*>(tile.b[i]);
      for (int64_t begin = 0; begin < tile.k; begin += kBlock) {
        const int64_t k = tile.k - begin < kBlock ? tile.k - begin : kBlock;
        for (int r = 0; r < kRows; ++r) widen(a + r * tile.lda + begin, k, wide[r]);
        for (int64_t p = 0; p < k; p += 2, b += 2 * Isa::kNr) {
          const auto pairs = [&](int v) { return Isa::load_pairs(b + 2 * v * Isa::kLanes); };
          sums.add_outer(&wide[0][p], kBlock, [&](int v) { return Isa::even(pairs(v)); });
          sums.add_outer(&wide[0][p + 1], kBlock, [&](int v) { return Isa::odd(pairs(v)); });
        }
      }
    }
    sums.store(tile);
  }
};

}  // namespace
}  // namespace quern::kernels
