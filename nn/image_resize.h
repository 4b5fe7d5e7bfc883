// Antialiased bilinear interpolation, in Pillow's fixed-point arithmetic.
// Internal to nn/image*.cpp.
#pragma once
#include <cstdint>
#include <vector>

namespace quern::image {

/// What a kernels::ResampleAxis shows.
struct Axis {
  int64_t taps = 0;
  std::vector<int64_t> begin, count;
  std::vector<int32_t> weights;

  int64_t size() const { return static_cast<int64_t>(begin.size()); }
  int64_t first() const { return begin.front(); }               ///< input that is used
  int64_t last() const { return begin.back() + count.back(); }  ///< and its end
};

/// Outputs first..first+count-1 of those that an input of `size` pixels, of which `length` from
/// `start` on are shown, gets when these are resized to `resized`.
Axis make_axis(int64_t size, double start, double length, int64_t resized, int64_t first,
               int64_t count);

/// out, [rows.size(), columns.size(), 3], from `in`, whose row and column 0 are inputs rows.first()
/// and columns.first() and whose rows are `in_width` pixels long. Mirrored where `flip`.
/// Values are rounded along rows first, and then along columns.
void resize(const uint8_t* in, int64_t in_width, const Axis& rows, const Axis& columns, bool flip,
            uint8_t* out);

}  // namespace quern::image
