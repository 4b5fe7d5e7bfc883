// Step 5: the tile that fills AVX-512's 32 registers of 16 floats: 28 sums, two vectors of B; of A,
// one element at a time is an operand in memory, broadcast by the multiplication itself.
#include <immintrin.h>

#include "tile.h"

namespace quern::lessons {
namespace {

// [tile]
constexpr int kMr = 14, kNr = 32;

void run(int64_t k, const float* a, const float* b, float* c, int64_t ldc) {
  __m512 left[kMr], right[kMr];  // columns 0..15, 16..31
#pragma GCC unroll 14
  for (int i = 0; i < kMr; ++i) left[i] = right[i] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k; ++p, a += kMr, b += kNr) {
    const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
    for (int i = 0; i < kMr; ++i) {
      const __m512 x = _mm512_set1_ps(a[i]);
      left[i] = _mm512_fmadd_ps(x, b0, left[i]);
      right[i] = _mm512_fmadd_ps(x, b1, right[i]);
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

constinit const Tile<float> kWideTile{.mr = kMr, .nr = kNr, .a_step = 1, .b_step = 1, .run = run};

}  // namespace quern::lessons
