// What a cell of the gradient of the weight transposes and interleaves of a block of pixels.
#include <algorithm>

#include "quern/ops/kernels/conv/wgrad/transposed.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

/// x as taps read it, mapped: [position][channel].
template <class T, class Operand>
typename TransposedWgrad<T, Operand>::Source TransposedWgrad<T, Operand>::copy_x(const Cell& cell,
                                                                                 const Block& block,
                                                                                 T* copied) const {
  const auto [first, channels] = this->channels(cell, true);
  copy_block({.item = sizeof(T),
              .strides = x_strides_,
              .channels = channels,
              .position_stride = channels,
              .channel_stride = 1,
              .map = from_channel<Acc>(map_, first),
              .width = width_},
             y_axis_, x_axis_, block, static_cast<const T*>(x_) + first, copied);
  return {copied, channels, {}};
}

/// All positions of a block: x copied where it has to be, else the tensor's own.
template <class T, class Operand>
typename TransposedWgrad<T, Operand>::Source TransposedWgrad<T, Operand>::source(const Cell& cell,
                                                                                 const Block& block,
                                                                                 bool of_x,
                                                                                 T* copied) const {
  if (of_x && x_copied_) return copy_x(cell, block, copied);
  const ImageStrides& strides = of_x ? x_strides_ : dy_strides_;
  const int64_t first = channels(cell, of_x).begin;
  return {static_cast<const T*>(of_x ? x_ : dy_) + block.image * strides.n + block.row * strides.y +
              first * strides.c,
          strides.x, of_x ? from_channel<Acc>(map_, first) : ChannelMap{}};
}

/// A is [term][row][position]; what follows the positions meets zeros in B, so it must be finite.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::pack_a(const Cell& cell, const Block& block, T* copied,
                                         Operand* a) const {
  const PartSpan part("pack");
  const int64_t stride = row_items(block), positions = this->positions(block);
  const int64_t term = a_items(cell.rows.size, block);
  for (int64_t row = 0; row < terms_ * cell.rows.size; ++row) {
    Operand* to = a + row / cell.rows.size * term + row % cell.rows.size * stride;
    std::fill(to + positions, to + stride, Operand{});
  }
  if (kw_in_k_) return copy_tap_rows(cell, block, a);
  if (!pairs_) return copy_rows(cell, block, a);
  transpose(cell, block, source(cell, block, x_is_a_, copied), a);
}

/// Rows of A, one a channel.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::copy_rows(const Cell& cell, const Block& block,
                                            Operand* a) const {
  const auto [first, channels] = this->channels(cell, true);
  copy_block({.item = sizeof(T),
              .strides = x_strides_,
              .channels = channels,
              .position_stride = 1,
              .channel_stride = row_items(block),
              .map = from_channel<Acc>(map_, first),
              .bf16_terms = bf16_terms_,
              .term_stride = a_items(channels, block),
              .width = width_,
              // Where k is padded, runs read on into the next row.
              .padding_rows = linear_ || padded_k(gemm_, p_.ow) != p_.ow},
             y_axis_, x_axis_, block, static_cast<const T*>(x_) + first * x_strides_.c, a);
}

/// Rows of A, one a column of taps and channel: stretches of channels' planes.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::copy_tap_rows(const Cell& cell, const Block& block,
                                                Operand* a) const {
  const auto [first, channels] = this->channels(cell, true);
  const Scratch planes(y_axis_, taps_axis_, block.rows);
  const int64_t channel = planes.image() * block.images, copied_term = channels * channel;
  const Workspace copied(terms_ * copied_term * kItem);
  copy_block({.item = sizeof(T),
              .strides = x_strides_,
              .channels = channels,
              .position_stride = 1,
              .channel_stride = channel,
              .map = from_channel<Acc>(map_, first),
              .bf16_terms = bf16_terms_,
              .term_stride = copied_term},
             y_axis_, taps_axis_, block, static_cast<const T*>(x_) + first * x_strides_.c,
             copied.as<Operand>());
  const int64_t stride = row_items(block), term = a_items(cell.rows.size, block);
  for (int64_t i = 0; i < terms_ * cell.rows.size; ++i) {
    const int64_t row = i % cell.rows.size, t = i / cell.rows.size;
    const Tap tap = taps_axis_.tap(taps_axis_.phase(0), (cell.rows.begin + row) / icg_);
    const Operand* from = copied.as<Operand>() + t * copied_term +
                          (cell.rows.begin + row) % icg_ * channel + tap.plane * planes.plane() +
                          tap.shift;
    Operand* to = a + t * term + row * stride;
    for (int64_t y = 0; y < block.images * planes.planes_y * planes.height; ++y, to += width_) {
      const int64_t plane = y / planes.height * planes.planes_x;
      const Operand* pixels = from + plane * planes.plane() + y % planes.height * planes.width;
      std::fill(std::copy_n(pixels, p_.ow, to), to + width_, Operand{});
    }
  }
}

/// Positions become columns, by pairs: interleaved in L1, then transposed as words.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::transpose(const Cell& cell, const Block& block,
                                            const Source& from, Operand* a) const {
  constexpr int64_t kPositions = 64, kChannels = 64, kTerm = kPositions * kChannels;
  alignas(64) Operand pairs[2 * kTerm];
  const int64_t stride = row_items(block), positions = this->positions(block);
  const int64_t channels = cell.rows.size, term = a_items(channels, block);
  for (int64_t p = 0; p < positions; p += kPositions) {
    for (int64_t c = 0; c < channels; c += kChannels) {
      const PanelCopy copy{.src = from.at + p * from.pixel + c,
                           .src_stride = from.pixel,
                           .rows = std::min(kPositions, positions - p),
                           .cols = std::min(kChannels, channels - c),
                           .dst = pairs,
                           .panel_stride = 0,
                           .width = kChannels,
                           .pitch = kChannels,
                           .map = from_channel<Acc>(from.map, c),
                           .terms = static_cast<int>(terms_),
                           .term_stride = kTerm};
      if constexpr (std::is_same_v<T, Operand>) pack_panels(panel_format(gemm_), copy);
      else round_panels(copy);
      for (int64_t t = 0; t < terms_; ++t)
        copy_matrix(2 * kItem, pairs + t * kTerm, 1, kChannels, a + t * term + c * stride + p,
                    stride / 2, copy.cols, (copy.rows + 1) / 2);
    }
  }
}

/// B is [term][panel][run][k/kr][nr][kr].
template <class T, class Operand>
void TransposedWgrad<T, Operand>::pack_b(const Cell& cell, const Block& block, T* copied,
                                         Operand* b) const {
  const PartSpan part("pack");
  if (pairs_) return interleave(cell, block, source(cell, block, !x_is_a_, copied), b);
  const int64_t length = run_length(block), panel_items = run_count(block) * length * gemm_.nr;
  const int64_t term = b_items(cell.columns.size, block);
  const T* dy =
      static_cast<const T*>(dy_) + (cell.group * ocg_ + cell.columns.begin) * dy_strides_.c;
  const bool gaps = length != p_.ow || cell.columns.size % gemm_.nr != 0;
  std::fill_n(b, gaps ? terms_ * term : 0, Operand{});
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t i = 0; i < block.rows; ++i) {
      const T* row = dy + (block.image + n) * dy_strides_.n + (block.row + i) * dy_strides_.y;
      const int64_t run = linear_ ? n : n * block.rows + i;
      for (int64_t o = 0; o < cell.columns.size; o += gemm_.nr)
        pack_row(row + o * dy_strides_.c, std::min<int64_t>(gemm_.nr, cell.columns.size - o),
                 linear_ ? i * width_ : 0, term,
                 b + o / gemm_.nr * panel_items + run * length * gemm_.nr);
    }
  }
}

/// The same of pairs of pixels, all channels of each.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::interleave(const Cell& cell, const Block& block,
                                             const Source& from, Operand* b) const {
  const int64_t length = run_length(block), panel_items = run_count(block) * length * gemm_.nr;
  const int64_t term = b_items(cell.columns.size, block);
  const int64_t panels = panel_count(gemm_, cell.columns.size);
  /// Pixels to a run from `begin` on, and zeros up to `end`.
  const auto pack = [&](int64_t pixel, int64_t count, Operand* run, int64_t begin, int64_t end) {
    const PanelCopy copy{.src = from.at + pixel * from.pixel,
                         .src_stride = from.pixel,
                         .rows = count,
                         .cols = cell.columns.size,
                         .dst = run + begin * gemm_.nr,
                         .panel_stride = panel_items,
                         .width = gemm_.nr,
                         .pitch = gemm_.nr,
                         .map = from.map,
                         .terms = static_cast<int>(terms_),
                         .term_stride = term};
    if constexpr (std::is_same_v<T, Operand>) pack_panels(panel_format(gemm_), copy);
    else round_panels(copy);
    const int64_t packed = begin + round_up(count, gemm_.kr);
    for (int64_t i = 0; i < terms_ * panels; ++i) {
      Operand* panel = run + i / panels * term + i % panels * panel_items;
      std::fill(panel + packed * gemm_.nr, panel + end * gemm_.nr, Operand{});
    }
  };
  if (dense_) return pack(0, pixels(block), b, 0, length);
  for (int64_t i = 0; i < block.images * block.rows; ++i) {  // of dy
    const int64_t row = linear_ ? i % block.rows : 0, run = linear_ ? i / block.rows : i;
    const bool last = !linear_ || row + 1 == block.rows;
    pack(i * p_.ow, p_.ow, b + run * length * gemm_.nr, row * width_,
         last ? length : (row + 1) * width_);
  }
}

/// A row of pixels to rows of a panel from `first` on.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::pack_row(const T* dy, int64_t outputs, int64_t first,
                                           int64_t term, Operand* panel) const {
  if constexpr (std::is_same_v<T, Operand>) {
    pack_panel_rows(panel_format(gemm_), dy, dy_strides_.x, dy_strides_.c, p_.ow, outputs, first,
                    panel);
  } else {  // rounded where it is dense
    const bool innermost = dy_strides_.c == 1;
    const int64_t rows = innermost ? p_.ow : outputs, columns = innermost ? outputs : p_.ow;
    const int64_t items = rows * columns;
    const Workspace terms(terms_ * items * kItem);
    round_matrix(dy, innermost ? dy_strides_.x : dy_strides_.c, 1, terms.as<Operand>(), columns,
                 rows, columns, bf16_terms_, items);
    for (int64_t t = 0; t < terms_; ++t)
      pack_panel_rows(panel_format(gemm_), terms.as<Operand>() + t * items, innermost ? columns : 1,
                      innermost ? 1 : columns, p_.ow, outputs, first, panel + t * term);
  }
}

template class TransposedWgrad<bfloat16, bfloat16>;
template class TransposedWgrad<float, float>;
template class TransposedWgrad<float, bfloat16>;
template class TransposedWgrad<double, double>;

}  // namespace quern::kernels
