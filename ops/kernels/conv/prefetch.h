// What convolutions fetch while they multiply.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quern/ops/kernels/work.h"

namespace quern::kernels {

/// The channels of pixels that the next block reads, fetched to L2 by the tiles of this one, two
/// cache lines a step (GemmTile::prefetch): in bursts between the tiles they would take the
/// line-fill buffers that the tiles' own loads need.
class Prefetch {
 public:
  struct Lines {
    const void* at;
    int64_t step;
  };
  void add(const void* first, int64_t bytes, int64_t pixel_bytes, int64_t pixels) {
    const auto* at = static_cast<const std::byte*>(first);
    if (bytes == pixel_bytes) queue_[count_++] = {at, 1, kStep, ceil_div(pixels * bytes, kStep)};
    else queue_[count_++] = {at, ceil_div(bytes, kStep), pixel_bytes, pixels};
  }
  /// So many of them, or `otherwise` again and again.
  Lines next(int64_t steps, const void* otherwise) {
    while (current_ < count_ && queue_[current_].columns == 0) ++current_;
    if (current_ == count_) return {otherwise, 0};
    Columns& c = queue_[current_];
    const std::byte* at = c.at + row_ * c.step;
    row_ += steps;
    if (row_ >= c.rows) row_ = 0, c.at += kStep, --c.columns;
    return {at, c.step};
  }

 private:
  static constexpr int64_t kStep = 128;
  struct Columns {  // of steps, one pixel below the other
    const std::byte* at;
    int64_t columns, step, rows;
  };
  Columns queue_[4];  // of as many tensors
  int count_ = 0, current_ = 0;
  int64_t row_ = 0;
};

}  // namespace quern::kernels
