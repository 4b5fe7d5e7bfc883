#include "quern/ops/kernels/gemm/gemm_avx512.h"

namespace quern::kernels {
namespace {

/// Two neighbouring bf16 of A, in all lanes; an odd tap of a convolution leaves them 2-byte
/// aligned.
inline __m512bh broadcast_pair(const uint16_t* a) {
  int32_t pair;
  __builtin_memcpy(&pair, a, sizeof pair);
  __m512i pairs = _mm512_set1_epi32(pair);
#ifdef __clang__
  asm("" : "+v"(pairs));  // clang 16 crashes when it folds the broadcast into vdpbf16ps
#endif
  return (__m512bh)pairs;
}

inline __m512bh load_pairs(const uint16_t* b) { return (__m512bh)_mm512_loadu_si512(b); }

template <bool kColumns>
struct Bf16 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    Accumulators<kRows> c(tile);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const uint16_t*>(tile.b[i]);
#pragma GCC unroll 2
      for (int64_t p = 0; p < tile.k; p += 2, b += 2 * kNr) {
        const __m512bh b_lo = load_pairs(b), b_hi = load_pairs(b + kNr);
#pragma GCC unroll 14
        for (int r = 0; r < kRows; ++r) {
          const __m512bh x =
              broadcast_pair(kColumns ? a + p / 2 * tile.lda + 2 * r : a + r * tile.lda + p);
          c.lo[r] = _mm512_dpbf16_ps(c.lo[r], x, b_lo);
          c.hi[r] = _mm512_dpbf16_ps(c.hi[r], x, b_hi);
        }
      }
    }
    c.store(tile);
  }
};

}  // namespace

constinit const GemmKernel gemm_bf16_bf16_f32_14x32k2_avx512_bf16{
    "gemm_bf16_bf16_f32_14x32k2_avx512_bf16",
    Isa::avx512_bf16,
    DType::bf16,
    DType::bf16,
    DType::f32,
    kMr,
    kNr,
    2,
    2,
    dispatch_rows<Bf16<false>>,
    dispatch_rows<Bf16<true>>};

}  // namespace quern::kernels
