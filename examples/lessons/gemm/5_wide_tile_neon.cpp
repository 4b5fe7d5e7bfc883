// Step 5 on Arm: the tile that fills Neon's 32 registers of 4 floats: 24 sums, three vectors of B,
// two of A, of which the multiplication takes any element.
#include <arm_neon.h>

#include "tile.h"

namespace quern::lessons {
namespace {

// [tile]
constexpr int kMr = 8, kNr = 12, kVectors = kNr / 4;

void run(int64_t k, const float* a, const float* b, float* c, int64_t ldc) {
  float32x4_t sum[kMr][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kMr; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j) sum[i][j] = vdupq_n_f32(0);
  for (int64_t p = 0; p < k; ++p, a += kMr, b += kNr) {
    const float32x4_t row[kVectors] = {vld1q_f32(b), vld1q_f32(b + 4), vld1q_f32(b + 8)};
#pragma GCC unroll 8
    for (int i = 0; i < kMr; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; ++j) sum[i][j] = vfmaq_n_f32(sum[i][j], row[j], a[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kMr; ++i, c += ldc)
#pragma GCC unroll 3
    for (int j = 0; j < kVectors; ++j)
      vst1q_f32(c + 4 * j, vaddq_f32(vld1q_f32(c + 4 * j), sum[i][j]));
}
// [end]

}  // namespace

constinit const Tile<float> kWideTile{.mr = kMr, .nr = kNr, .a_step = 1, .b_step = 1, .run = run};

}  // namespace quern::lessons
