// Blocks of images, copied to zero-padded scratch in which every tap of a filter is an offset. Item
// sizes are 2, 4 or 8 bytes; strides count items.
#pragma once
#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/strides.h"
#include "quern/ops/kernels/epilogue.h"

namespace quern::kernels {

/// Some rows of some images: what one cell of work reads or writes.
struct Block {
  int64_t image, images;
  int64_t row, rows;  // outputs of the axis's longest phase
};

/// The positions of a block in scratch, [image][plane of y][plane of x][y][x].
struct Scratch {
  Scratch(const Axis& y, const Axis& x, int64_t rows)
      : planes_y(y.planes),
        planes_x(x.planes),
        height(y.extent(rows)),
        width(x.extent(x.longest_phase())) {}
  int64_t planes_y, planes_x, height, width;

  int64_t plane() const { return height * width; }
  int64_t image() const { return planes_y * planes_x * plane(); }
  /// Output (0, 0)'s position under a tap.
  int64_t tap(const Tap& y, const Tap& x) const {
    return (y.plane * planes_x + x.plane) * plane() + y.shift * width + x.shift;
  }
};

/// Copies `channels` channels of a block of src to scratch, zeros where there is padding: item
/// (position, channel) goes to position·position_stride + channel·channel_stride, one of which
/// is 1. Channels are in [c, c + channels), from the pointer on.
struct SourceCopy {
  int64_t item;
  ImageStrides strides;  // of src
  int64_t channels;
  int64_t position_stride, channel_stride;
  ChannelMap map = {};  // of these channels; what is copied is then bf16, f32 or f64, by `item`
  /// Not 0: f32 becomes so many terms of bf16 (pack/bf16_terms.h), `term_stride` items from one to
  /// the next.
  int bf16_terms = 0;
  int64_t term_stride = 0;
};
/// A map of all channels, from one on. Acc is what its arrays hold.
template <class Acc>
ChannelMap from_channel(const ChannelMap& map, int64_t channel) {
  if (!map.scale) return map;
  return {.center = static_cast<const Acc*>(map.center) + channel,
          .scale = static_cast<const Acc*>(map.scale) + channel,
          .shift = static_cast<const Acc*>(map.shift) + channel,
          .activation = map.activation};
}
void copy_block(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
                const void* src, void* scratch);

}  // namespace quern::kernels
