// What a cell of the gradient of the weight copies and packs of a block of pixels.
#include <algorithm>

#include "quern/ops/kernels/conv/brgemm_wgrad_outer.h"

namespace quern::kernels {

/// A packed; what is returned is B.
template <class T>
typename OuterWgrad<T>::Source OuterWgrad<T>::pack(const Cell& cell, const Block& block,
                                                   const Memory& memory) const {
  const Source dy = copy_dy(cell, block, memory.dy);
  if (x_is_a_ && !x_copied_) {
    pack_x(cell, block, memory.a);
    return dy;
  }
  const Source x = copy_x(cell, block, memory.x);
  pack_a(cell, block, x_is_a_ ? x : dy, memory.a);
  return x_is_a_ ? dy : x;
}

/// A of one tap from x where it lies, mapped.
template <class T>
void OuterWgrad<T>::pack_x(const Cell& cell, const Block& block, T* a) const {
  const auto [first, channels] = x_channels(cell);
  const SourceMap map = from_channel<Acc>(map_, first);
  const bool dense = p_.stride_h == 1 && p_.stride_w == 1;  // and one image: linearised
  const int64_t rows = dense ? block.rows : 1;
  for (int64_t n = 0; n < block.images; ++n)
    for (int64_t row = 0; row < block.rows; row += rows)
      pack_columns(cell, block,
                   {x_ + (block.image + n) * x_strides_.n +
                        (block.row + row) * p_.stride_h * x_strides_.y + first,
                    p_.stride_w * x_strides_.x},
                   rows * p_.ow, (n * block.rows + row) * p_.ow, a, map);
}

/// x where it lies, or copied with its padding, mapped.
template <class T>
typename OuterWgrad<T>::Source OuterWgrad<T>::copy_x(const Cell& cell, const Block& block,
                                                     T* to) const {
  const auto [first, channels] = x_channels(cell);
  if (!x_copied_)
    return {x_ + block.image * x_strides_.n + block.row * x_strides_.y + first, x_strides_.x};
  const int64_t pixel = x_pixel(channels);
  for (size_t s = 0; s < x_axes_.size(); ++s)
    copy_block({.item = sizeof(T),
                .strides = x_strides_,
                .channels = channels,
                .position_stride = pixel,
                .channel_stride = 1,
                .map = from_channel<Acc>(map_, first)},
               y_axis_, x_axes_[s], block, x_ + first,
               to + static_cast<int64_t>(s) * x_items(block, channels));
  return {to, pixel};
}

template <class T>
typename OuterWgrad<T>::Source OuterWgrad<T>::copy_dy(const Cell& cell, const Block& block,
                                                      T* to) const {
  const auto [first, channels] = dy_channels(cell);
  const T* from = dy_ + block.image * dy_strides_.n + block.row * dy_strides_.y + first;
  if (!dy_copied_) return {from, dy_strides_.x};
  const int64_t pixel = copy_pixel(channels);
  copy_matrix(sizeof(T), from, dy_strides_.x, 1, to, pixel, pixels(block), channels);
  return {to, pixel};
}

/// A is [sliver of a tile's rows][column/kr][kPitch][kr]. Columns are the pixels of the block, or
/// rows of them, of the zero-padded copy of x if the row of taps is to be an offset.
template <class T>
void OuterWgrad<T>::pack_a(const Cell& cell, const Block& block, const Source& source, T* a) const {
  const auto pack = [&](int64_t pixel, int64_t count, int64_t column) {
    pack_columns(cell, block, {source.at + pixel * source.pixel, source.pixel}, count, column, a);
  };
  if (linear_) return pack(0, pixels(block), 0);
  if (by_image_) {
    for (int64_t n = 0; n < block.images; ++n)
      pack(n * block.rows * p_.ow, block.rows * p_.ow, n * image_columns(block));
  } else if (!x_is_a_) {
    for (int64_t i = 0; i < block.images * block.rows; ++i) pack(i * p_.ow, p_.ow, i * width_);
  } else {  // one plane of x, all taps of a row side by side
    const Scratch layout = scratch(block);
    for (int64_t i = 0; i < block.images * layout.planes_y * layout.height; ++i)
      pack_columns(cell, block,
                   {source.at + i * layout.width * source.pixel + cell.rows.begin,
                    x_axes_[0].stretch * source.pixel},
                   p_.ow, i * width_, a);
  }
}

/// Some pixels to the columns from `column` on.
template <class T>
void OuterWgrad<T>::pack_columns(const Cell& cell, const Block& block, const Source& source,
                                 int64_t count, int64_t column, T* a, const SourceMap& map) const {
  pack_panels(gemm_, {.src = source.at,
                      .src_stride = source.pixel,
                      .rows = count,
                      .cols = cell.rows.size,
                      .dst = a + column * kPitch,
                      .panel_stride = a_columns(block) * kPitch,
                      .width = even_piece(cell.rows.size, gemm_.mr),
                      .pitch = kPitch,
                      .scale = map.scale,
                      .shift = map.shift});
}

template OuterWgrad<bfloat16>::Source OuterWgrad<bfloat16>::pack(const Cell&, const Block&,
                                                                 const Memory&) const;
template OuterWgrad<float>::Source OuterWgrad<float>::pack(const Cell&, const Block&,
                                                           const Memory&) const;
template OuterWgrad<double>::Source OuterWgrad<double>::pack(const Cell&, const Block&,
                                                             const Memory&) const;

}  // namespace quern::kernels
