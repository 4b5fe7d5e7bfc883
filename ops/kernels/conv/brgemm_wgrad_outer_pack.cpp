// What a cell of the gradient of the weight copies and packs of a block of pixels.
#include "quern/ops/kernels/conv/brgemm_wgrad_outer.h"

namespace quern::kernels {

/// A packed; what is returned is B.
template <class T>
typename OuterWgrad<T>::Source OuterWgrad<T>::pack(const Cell& cell, const Block& block,
                                                   const Memory& memory) const {
  const Source x = copy_x(cell, block, memory.x), dy = copy_dy(cell, block, memory.dy);
  pack_a(cell, block, x_is_a_ ? x : dy, memory.a);
  return x_is_a_ ? dy : x;
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
  const int64_t columns = a_columns(block);
  const auto pack = [&](const T* from, int64_t pixel, int64_t count, int64_t column) {
    pack_panels(gemm_, {.src = from,
                        .src_stride = pixel,
                        .rows = count,
                        .cols = cell.rows.size,
                        .dst = a + column * kPitch,
                        .panel_stride = columns * kPitch,
                        .width = even_piece(cell.rows.size, gemm_.mr),
                        .pitch = kPitch});
  };
  if (linear_) return pack(source.at, source.pixel, pixels(block), 0);
  if (by_image_) {
    for (int64_t n = 0; n < block.images; ++n)
      pack(source.at + n * block.rows * p_.ow * source.pixel, source.pixel, block.rows * p_.ow,
           n * image_columns(block));
    return;
  }
  if (!x_is_a_) {
    for (int64_t i = 0; i < block.images * block.rows; ++i)
      pack(source.at + i * p_.ow * source.pixel, source.pixel, p_.ow, i * width_);
    return;
  }
  const Scratch layout = scratch(block);  // one plane of x, all taps of a row side by side
  for (int64_t i = 0; i < block.images * layout.planes_y * layout.height; ++i)
    pack(source.at + i * layout.width * source.pixel + cell.rows.begin,
         x_axes_[0].stretch * source.pixel, p_.ow, i * width_);
}

template OuterWgrad<bfloat16>::Source OuterWgrad<bfloat16>::pack(const Cell&, const Block&,
                                                                 const Memory&) const;
template OuterWgrad<float>::Source OuterWgrad<float>::pack(const Cell&, const Block&,
                                                           const Memory&) const;
template OuterWgrad<double>::Source OuterWgrad<double>::pack(const Cell&, const Block&,
                                                             const Memory&) const;

}  // namespace quern::kernels
