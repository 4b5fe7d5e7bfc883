// 6×16 tiles in AVX2: 12 accumulators, two vectors of B and one broadcast of A in 16 registers.
#include <immintrin.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 6, kNr = 16;

/// Lanes of columns first..first+7 that exist.
inline __m256i lanes(int64_t n, int first) {
  const __m256i column =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), column);
}

template <int kRows>
struct Accumulators {
  __m256 lo[kRows], hi[kRows];  // columns 0..7, 8..15

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) lo[r] = hi[r] = _mm256_setzero_ps();
  }

  /// += a column of A, its elements `stride` apart, times a row of B.
  __attribute__((always_inline)) void add_outer(const float* a, int64_t stride, __m256 b_lo,
                                                __m256 b_hi) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * stride);
      lo[r] = _mm256_fmadd_ps(x, b_lo, lo[r]);
      hi[r] = _mm256_fmadd_ps(x, b_hi, hi[r]);
    }
  }

  __attribute__((always_inline)) void store(const GemmTile& tile) const {
    const __m256i in_lo = lanes(tile.n, 0), in_hi = lanes(tile.n, 8);
    auto* c = static_cast<float*>(tile.c);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      __m256 sum_lo = lo[r], sum_hi = hi[r];
      if (tile.accumulate) {
        sum_lo = _mm256_add_ps(sum_lo, _mm256_maskload_ps(c, in_lo));
        sum_hi = _mm256_add_ps(sum_hi, _mm256_maskload_ps(c + 8, in_hi));
      }
      _mm256_maskstore_ps(c, in_lo, sum_lo);
      _mm256_maskstore_ps(c + 8, in_hi, sum_hi);
    }
  }
};

template <bool kOuter>
struct F32 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    Accumulators<kRows> c;
    const auto* prefetch = static_cast<const char*>(tile.prefetch);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const float*>(tile.a[i]);
      const auto* b = static_cast<const float*>(tile.b[i]);
      const int64_t ldb = kOuter ? tile.ldb : kNr;
#pragma GCC unroll 4
      for (int64_t p = 0; p < tile.k; ++p, b += ldb) {
        if constexpr (kOuter) {
          _mm_prefetch(prefetch, _MM_HINT_T1);
          _mm_prefetch(prefetch + 64, _MM_HINT_T1);
          prefetch += tile.prefetch_step;
        }
        c.add_outer(a + (kOuter ? p * tile.lda : p), kOuter ? 1 : tile.lda, _mm256_loadu_ps(b),
                    _mm256_loadu_ps(b + 8));
      }
    }
    c.store(tile);
  }
};

/// bf16 as the upper halves of f32: A is widened to a block of f32 first, so that the inner loop
/// broadcasts it from memory; of the pairs of B one shift gives the even k, one mask the odd.
struct Bf16 {
  static constexpr int kBlock = 128;  // 3 KiB of f32 for 6 rows: beside a panel of B in L1

  static __m256i load(const uint16_t* b) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
  }
  static __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 odd(__m256i pairs) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
  }

  static void widen(const uint16_t* a, int64_t k, float* wide) {
    int64_t p = 0;
    for (; p + 8 <= k; p += 8) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + p));
      _mm256_storeu_ps(wide + p, even(_mm256_cvtepu16_epi32(x)));
    }
    for (; p < k; ++p) {
      const uint32_t bits = static_cast<uint32_t>(a[p]) << 16;
      __builtin_memcpy(wide + p, &bits, sizeof bits);
    }
  }

  template <int kRows>
  static void run(const GemmTile& tile) {
    alignas(32) float wide[kRows][kBlock];
    Accumulators<kRows> c;
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const uint16_t*>(tile.b[i]);
      for (int64_t begin = 0; begin < tile.k; begin += kBlock) {
        const int64_t k = tile.k - begin < kBlock ? tile.k - begin : kBlock;
        for (int r = 0; r < kRows; ++r) widen(a + r * tile.lda + begin, k, wide[r]);
        for (int64_t p = 0; p < k; p += 2, b += 2 * kNr) {
          c.add_outer(&wide[0][p], kBlock, even(load(b)), even(load(b + kNr)));
          c.add_outer(&wide[0][p + 1], kBlock, odd(load(b)), odd(load(b + kNr)));
        }
      }
    }
    c.store(tile);
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_6x16"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = kMr,
     .nr = kNr,
     .run = dispatch_rows<F32<false>, kMr>,
     .run_outer = dispatch_rows<F32<true>, kMr>},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_6x16k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = kMr,
     .nr = kNr,
     .kr = 2,
     .run = dispatch_rows<Bf16, kMr>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
