// Step 2: step 1 on blocks of B that are small enough to stay in a core's cache
// while they are used.
#include <algorithm>

#include "gemm.h"

namespace quern::lessons {
namespace {

// [blocks]
constexpr int64_t kc = 64, nc = 512;  // of B: 128 KiB, of the 256 KiB to 2 MiB that L2 has
// [end]

}  // namespace

// [loops]
void cache_blocks(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  for (int64_t jc = 0; jc < size.n; jc += nc) {
    for (int64_t pc = 0; pc < size.k; pc += kc) {
      const Size block{size.m, std::min(nc, size.n - jc), std::min(kc, size.k - pc)};
      loop_order(block, a.from(0, pc), b.from(pc, jc), c.from(0, jc));
    }
  }
}
// [end]

}  // namespace quern::lessons
