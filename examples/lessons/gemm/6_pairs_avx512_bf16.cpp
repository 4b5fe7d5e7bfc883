// Step 6: the tile of step 5 in bf16, by vdpbf16ps: each of its 16 lanes multiplies a pair of A by
// a pair of B and adds both products to an f32.
#include <immintrin.h>

#include "tile.h"

namespace quern::lessons {
namespace {

// [tile]
constexpr int kMr = 14, kNr = 32, kPair = 2;

/// 16 pairs, or one of them 16 times.
__m512i load(const bfloat16* b) { return _mm512_loadu_si512(b); }
__m512i broadcast(const bfloat16* a) {
  int32_t pair;
  __builtin_memcpy(&pair, a, sizeof pair);
  __m512i all = _mm512_set1_epi32(pair);
  asm("" : "+v"(all));  // clang 16 crashes when it folds the broadcast
  return all;
}
__m512 add(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

void run(int64_t k, const bfloat16* a, const bfloat16* b, float* c, int64_t ldc) {
  __m512 left[kMr], right[kMr];  // columns 0..15, 16..31
#pragma GCC unroll 14
  for (int i = 0; i < kMr; ++i) left[i] = right[i] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k; p += kPair, a += kPair * kMr, b += kPair * kNr) {
    const __m512i b0 = load(b), b1 = load(b + kPair * 16);
#pragma GCC unroll 14
    for (int i = 0; i < kMr; ++i) {
      const __m512i x = broadcast(a + kPair * i);
      left[i] = add(left[i], x, b0);
      right[i] = add(right[i], x, b1);
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < kMr; ++i, c += ldc) {
    _mm512_storeu_ps(c, _mm512_add_ps(_mm512_loadu_ps(c), left[i]));
    _mm512_storeu_ps(c + 16, _mm512_add_ps(_mm512_loadu_ps(c + 16), right[i]));
  }
}
// [end]

}  // namespace

constinit const Tile<bfloat16> kPairTile{
    .mr = kMr, .nr = kNr, .a_step = kPair, .b_step = kPair, .run = run};

}  // namespace quern::lessons
