// Step 6 on Arm: the tile of step 5 in bf16, by bfdot: each of its four lanes multiplies a pair of
// A by a pair of B and adds both products to an f32.
#include <arm_neon.h>

#include "tile.h"

namespace quern::lessons {
namespace {

// [tile]
constexpr int kMr = 8, kNr = 12, kPair = 2, kVectors = kNr / 4;

/// Four pairs, or one of them four times.
bfloat16x8_t load(const bfloat16* b) {
  return vreinterpretq_bf16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(b)));
}
bfloat16x8_t broadcast(const bfloat16* a) {
  uint32_t pair;
  __builtin_memcpy(&pair, a, sizeof pair);
  return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
}

void run(int64_t k, const bfloat16* a, const bfloat16* b, float* c, int64_t ldc) {
  float32x4_t sum[kMr][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kMr; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j) sum[i][j] = vdupq_n_f32(0);
  for (int64_t p = 0; p < k; p += kPair, a += kPair * kMr, b += kPair * kNr) {
    const bfloat16x8_t row[kVectors] = {load(b), load(b + 8), load(b + 16)};
#pragma GCC unroll 8
    for (int i = 0; i < kMr; ++i) {
      const bfloat16x8_t x = broadcast(a + kPair * i);
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; ++j) sum[i][j] = vbfdotq_f32(sum[i][j], x, row[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kMr; ++i, c += ldc)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j)
      vst1q_f32(c + 4 * j, vaddq_f32(vld1q_f32(c + 4 * j), sum[i][j]));
}
// [end]

}  // namespace

constinit const Tile<bfloat16> kPairTile{
    .mr = kMr, .nr = kNr, .a_step = kPair, .b_step = kPair, .run = run};

}  // namespace quern::lessons
