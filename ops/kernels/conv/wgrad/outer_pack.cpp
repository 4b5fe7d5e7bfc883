// What a cell of the gradient of the weight copies and packs of a block of pixels.
#include <algorithm>

#include "quern/ops/kernels/conv/wgrad/outer.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/span.h"

namespace quern::kernels {

/// A packed; what is returned is B.
template <class T, class Operand>
typename OuterWgrad<T, Operand>::template Source<Operand> OuterWgrad<T, Operand>::pack(
    const Cell& cell, const Block& block, const Memory& memory) const {
  const PartSpan part("pack");
  if (!x_is_a_) {
    pack_a(cell, block, copy_dy(cell, block, memory.source), memory.a);
    return copy_x(cell, block, memory.b);
  }
  if (x_copied_) pack_a(cell, block, copy_x(cell, block, memory.source), memory.a);
  else pack_x(cell, block, memory.a);
  return copy_dy(cell, block, memory.b);
}

/// A of one tap from x where it lies, mapped.
template <class T, class Operand>
void OuterWgrad<T, Operand>::pack_x(const Cell& cell, const Block& block, Operand* a) const {
  const auto [first, channels] = x_channels(cell);
  const ChannelMap map = from_channel<Acc>(map_, first);
  const bool dense = p_.stride_h == 1 && p_.stride_w == 1;  // and one image: linearised
  const int64_t rows = dense ? block.rows : 1;
  for (int64_t n = 0; n < block.images; ++n)
    for (int64_t row = 0; row < block.rows; row += rows)
      pack_columns(cell, block,
                   {.at = x() + (block.image + n) * x_strides_.n +
                          (block.row + row) * p_.stride_h * x_strides_.y + first * x_strides_.c,
                    .pixel = p_.stride_w * x_strides_.x,
                    .channel = x_strides_.c},
                   rows * p_.ow, (n * block.rows + row) * p_.ow, a, map);
}

/// x where it lies, or copied with its padding, mapped; as operands if that is asked for.
template <class T, class Operand>
template <class To>
typename OuterWgrad<T, Operand>::template Source<To> OuterWgrad<T, Operand>::copy_x(
    const Cell& cell, const Block& block, To* to) const {
  const auto [first, channels] = x_channels(cell);
  constexpr bool rounds = !std::is_same_v<T, To>;
  if constexpr (!rounds)
    if (!x_copied_)
      return {x() + block.image * x_strides_.n + block.row * x_strides_.y + first, x_strides_.x};
  const int64_t pixel = x_pixel(channels), items = x_items(block, channels);
  const int64_t term = items * static_cast<int64_t>(x_axes_.size());
  for (size_t s = 0; s < x_axes_.size(); ++s)
    copy_block({.item = sizeof(T),
                .strides = x_strides_,
                .channels = channels,
                .position_stride = pixel,
                .channel_stride = 1,
                .map = from_channel<Acc>(map_, first),
                .bf16_terms = rounds ? bf16_terms_ : 0,
                .term_stride = term},
               y_axis_, x_axes_[s], block, x() + first * x_strides_.c,
               to + static_cast<int64_t>(s) * items);
  return {to, pixel, term};
}

/// dy where it lies, or copied; as operands if that is asked for.
template <class T, class Operand>
template <class To>
typename OuterWgrad<T, Operand>::template Source<To> OuterWgrad<T, Operand>::copy_dy(
    const Cell& cell, const Block& block, To* to) const {
  const auto [first, channels] = dy_channels(cell);
  const ImageStrides& s = dy_strides_;
  const T* from = dy() + block.image * s.n + block.row * s.y + first * s.c;
  constexpr bool rounds = !std::is_same_v<T, To>;
  if constexpr (!rounds)
    if (!dy_copied_) return {from, s.x, 0, s.c, s.c == 1 ? 0 : s.n};
  const int64_t pixel = dy_pixel(channels), items = dy_items(block, channels);
  const int64_t images = s.c == 1 ? 1 : block.images;  // that do not follow each other
  const int64_t count = pixels(block) / images;
  for (int64_t n = 0; n < images; ++n, from += s.n) {
    To* const of_image = to + n * count * pixel;
    if constexpr (rounds)
      round_matrix(from, s.x, s.c, of_image, pixel, count, channels, bf16_terms_, items);
    else copy_matrix(sizeof(T), from, s.x, s.c, of_image, pixel, count, channels);
  }
  return {to, pixel, items};
}

/// A is [sliver of a tile's rows][column/kr][kPitch][kr]. Columns are the pixels of the block, or
/// rows of them, of the zero-padded copy of x if the row of taps is to be an offset.
template <class T, class Operand>
void OuterWgrad<T, Operand>::pack_a(const Cell& cell, const Block& block, const Source<T>& source,
                                    Operand* a) const {
  const int64_t image = block.rows * p_.ow;  // its pixels
  const auto pack = [&](int64_t n, int64_t pixel, int64_t count, int64_t column) {
    Source<T> from = source;
    from.at += n * (source.image != 0 ? source.image : image * source.pixel) + pixel * source.pixel;
    pack_columns(cell, block, from, count, column, a);
  };
  if (linear_ && source.image == 0) {
    pack(0, 0, pixels(block), 0);
  } else if (linear_ || by_image_) {
    for (int64_t n = 0; n < block.images; ++n)
      pack(n, 0, image, n * (linear_ ? image : image_columns(block)));
  } else if (!x_is_a_) {
    for (int64_t i = 0; i < block.images * block.rows; ++i)
      pack(i / block.rows, i % block.rows * p_.ow, p_.ow, i * width_);
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
template <class T, class Operand>
void OuterWgrad<T, Operand>::pack_columns(const Cell& cell, const Block& block,
                                          const Source<T>& source, int64_t count, int64_t column,
                                          Operand* a, const ChannelMap& map) const {
  const int64_t rows = even_piece(cell.rows.size, mr()), sliver = a_columns(block) * kPitch;
  if (source.channel != 1) {  // transposed; the last of an odd number of columns is half a group
    const PanelFormat format{.dtype = gemm_.a, .nr = kPitch, .kr = gemm_.kr};
    for (int64_t row = 0; row < cell.rows.size; row += rows, a += sliver) {
      const int64_t end = column + count, group = end / gemm_.kr * gemm_.kr;
      if (group != end) std::fill_n(a + group * kPitch, gemm_.kr * kPitch, Operand{});
      pack_panel_rows(format, source.at + row * source.channel, source.pixel, source.channel, count,
                      std::min(rows, cell.rows.size - row), column, a);
    }
    return;
  }
  const PanelCopy copy{.src = source.at,
                       .src_stride = source.pixel,
                       .rows = count,
                       .cols = cell.rows.size,
                       .dst = a + column * kPitch,
                       .panel_stride = sliver,
                       .width = rows,
                       .pitch = kPitch,
                       .map = map,
                       .terms = static_cast<int>(terms_),
                       .term_stride = a_items(block, cell.rows.size)};
  if constexpr (kRounds) round_panels(copy);
  else pack_panels(panel_format(gemm_), copy);
}

template OuterWgrad<bfloat16, bfloat16>::Source<bfloat16> OuterWgrad<bfloat16, bfloat16>::pack(
    const Cell&, const Block&, const Memory&) const;
template OuterWgrad<float, float>::Source<float> OuterWgrad<float, float>::pack(
    const Cell&, const Block&, const Memory&) const;
template OuterWgrad<float, bfloat16>::Source<bfloat16> OuterWgrad<float, bfloat16>::pack(
    const Cell&, const Block&, const Memory&) const;
template OuterWgrad<double, double>::Source<double> OuterWgrad<double, double>::pack(
    const Cell&, const Block&, const Memory&) const;

}  // namespace quern::kernels
