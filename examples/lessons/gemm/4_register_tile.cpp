// Step 4: a tile of C stays in registers over the whole of k. xsimd's vectors, as long as this file
// is compiled for: 8 floats of AVX2, 4 of Neon.
#include <xsimd/xsimd.hpp>

#include "tile.h"

namespace quern::lessons {
namespace {

// [tile]
using Vec = xsimd::batch<float>;
constexpr int kLanes = Vec::size;
constexpr int kMr = 6, kNr = 2 * kLanes;  // 12 of AVX2's 16 registers are sums

void run(int64_t k, const float* a, const float* b, float* c, int64_t ldc) {
  Vec left[kMr], right[kMr];  // columns 0..kLanes, kLanes..kNr
#pragma GCC unroll 6
  for (int i = 0; i < kMr; ++i) left[i] = right[i] = Vec(0.0f);
  for (int64_t p = 0; p < k; ++p, a += kMr, b += kNr) {
    const Vec b0 = Vec::load_unaligned(b), b1 = Vec::load_unaligned(b + kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kMr; ++i) {
      const Vec x(a[i]);
      left[i] = xsimd::fma(x, b0, left[i]);
      right[i] = xsimd::fma(x, b1, right[i]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kMr; ++i, c += ldc) {
    (Vec::load_unaligned(c) + left[i]).store_unaligned(c);
    (Vec::load_unaligned(c + kLanes) + right[i]).store_unaligned(c + kLanes);
  }
}
// [end]

}  // namespace

constinit const Tile<float> kVectorTile{.mr = kMr, .nr = kNr, .a_step = 1, .b_step = 1, .run = run};

}  // namespace quern::lessons
