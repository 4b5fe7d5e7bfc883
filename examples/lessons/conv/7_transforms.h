// Step 7's transforms, of all channels of a tile; compiled for each instruction set.
#pragma once
#include <cstdint>

namespace quern::lessons {

struct WinogradTransforms {
  /// v = Bᵀ·d·B: pixel (i, j) of the 6×6 that a tile reads is at d + i·row + j·channels,
  /// point (i, j) at v + (6·i + j)·point.
  void (*source)(int64_t channels, const float* d, int64_t row, float* v, int64_t point);
  /// y = Aᵀ·m·A: point (i, j) is at m + (6·i + j)·point, pixel (i, j) of the 4×4 at
  /// y + (4·i + j)·channels.
  void (*output)(int64_t channels, const float* m, int64_t point, float* y);
};

extern const WinogradTransforms kTransformsAvx2, kTransformsAvx512, kTransformsNeon;

}  // namespace quern::lessons
