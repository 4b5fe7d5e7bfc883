// How images are cut into blocks, blocks copied to zero-padded scratch in which every tap of a
// filter is an offset, and the next block prefetched. Item sizes are 2, 4 or 8 bytes; strides count
// items.
#pragma once
#include <cstddef>

#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// Some rows of some images: what one cell of work reads or writes.
struct Block {
  int64_t image, images;
  int64_t row, rows;  // outputs of the axis's longest phase
};

/// The images and rows of a problem, cut into blocks alike.
struct BlockGrid {
  int64_t images, rows;              // of the problem
  int64_t block_images, block_rows;  // of a block; those at the end may be smaller

  int64_t row_blocks() const { return ceil_div(rows, block_rows); }
  int64_t count() const { return ceil_div(images, block_images) * row_blocks(); }
  Block operator[](int64_t i) const;

  /// The largest blocks that take at most `budget` bytes, told the bytes of one image's block of
  /// rows: several images if a whole one fits, else some rows of one.
  template <class Bytes>
  static BlockGrid within(int64_t images, int64_t rows, int64_t budget, Bytes bytes) {
    if (bytes(rows) == 0) return {images, rows, images, rows};
    if (bytes(rows) <= budget)
      return {images, rows, even_piece(images, budget / bytes(rows)), rows};
    int64_t fit = 1;
    while (fit < rows && bytes(fit + 1) <= budget) ++fit;
    return {images, rows, 1, even_piece(rows, fit)};
  }
};

/// The positions of a block in scratch, [image][plane of y][plane of x][y][x].
struct Scratch {
  /// Rows of `width`; 0: of all positions that their taps read.
  Scratch(const Axis& y, const Axis& x, int64_t rows, int64_t width = 0)
      : planes_y(y.planes),
        planes_x(x.planes),
        height(y.extent(rows)),
        width(width > 0 ? width : x.extent(x.longest_phase())) {}
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
  int64_t width = 0;         // of Scratch
  bool padding_rows = true;  // are they zeroed? Else nobody reads them
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
  /// Some channels of the rows of a block, of one image unless its rows and channels are all.
  void add(const void* tensor, int64_t item, const ImageStrides& strides, const Extent& channels,
           const Block& block);
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

/// Rows of A that the cache keeps in one set if they are this far apart: a micro-kernel reads mr of
/// them at a time, and a first-level set holds eight or twelve.
bool rows_collide(const GemmKernel& gemm, int64_t stride);
/// `items` of A's type, and as few more as make rows so far apart not collide.
int64_t without_collisions(const GemmKernel& gemm, int64_t items);

/// f(a tensor's item, an operand's), as types.
template <class F>
void visit_items(const ConvChoice& choice, F f) {
  if (choice.bf16_terms != 0) return f(std::type_identity<float>{}, std::type_identity<bfloat16>{});
  visit_floating("conv2d", choice.problem.dtype,
                 [&]<class T>(std::type_identity<T> item) { f(item, item); });
}

}  // namespace quern::kernels
