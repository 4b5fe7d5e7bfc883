// Packing a block of x and dy for the gradient of the weight.
#include "quern/ops/kernels/conv/brgemm_wgrad.h"

namespace quern::kernels {

template <class T>
void WgradEngine<T>::pack(const Cell& cell, const Block& block, const Memory& memory) const {
  if (columns_) pack_a_columns(cell, block, memory.plain, memory.a);
  else pack_a_rows(cell, block, memory.a);
  pack_b(cell, block, memory.b);
}

/// A is [row][position]; what follows the positions meets zeros in B, so it must be finite.
template <class T>
void WgradEngine<T>::pack_a_rows(const Cell& cell, const Block& block, T* a) const {
  const int64_t stride = row_items(block);
  const int64_t positions = scratch(block).image() * block.images;
  for (int64_t row = 0; row < cell.rows.size; ++row)
    std::fill(a + row * stride + positions, a + (row + 1) * stride, T{});
  for (int64_t row = 0; row < cell.rows.size;) {
    const int64_t tap = (cell.rows.begin + row) / icg_, channel = (cell.rows.begin + row) % icg_;
    const int64_t channels = std::min(icg_ - channel, cell.rows.size - row);
    const int64_t first = cell.group * icg_ + channel;
    copy_block(copy_of(first, channels, 1, stride), y_axis_, x_axes_[static_cast<size_t>(tap)],
               block, x_ + first * x_strides_.c, a + row * stride);
    row += channels;
  }
}

/// A is [x tap][sliver of a tile's rows][image][y plane][y][x/kr][kPitch][kr]: every x tap has its
/// copy, so that a row of outputs follows the one before without a rim and groups of kr columns start
/// at even places. An image is copied with its padding first, unless it needs none.
template <class T>
void WgradEngine<T>::pack_a_columns(const Cell& cell, const Block& block, T* plain, T* a) const {
  const Scratch scratch = this->scratch(block);
  const int64_t channels = folded_ ? icg_ : cell.rows.size;
  const int64_t step = even_piece(cell.rows.size, gemm_.mr);
  const int64_t slivers = ceil_div(cell.rows.size, step);
  const bool by_rows = in_place_ && map_.scale;               // through `plain`
  const int64_t pixel = in_place_ ? x_strides_.x : channels;  // items between positions
  const int64_t first = cell.group * icg_ + (folded_ ? 0 : cell.rows.begin);
  const SourceCopy copy = copy_of(first, channels, channels, 1);
  for (int64_t n = 0; n < block.images; ++n) {
    const auto copy_rows = [&](int64_t row, int64_t rows) {
      copy_block(copy, y_axis_, x_axes_[0],
                 {.image = block.image + n, .images = 1, .row = block.row + row, .rows = rows},
                 x_ + first, plain);
      return plain + (folded_ ? cell.rows.begin : 0);
    };
    const T* from = in_place_
                        ? x_ + first + (block.image + n) * x_strides_.n + block.row * x_strides_.y
                        : copy_rows(0, block.rows);
    // Rows of outputs, or all at once where nothing is between them.
    const bool whole = in_place_ && !by_rows && width_ == p_.ow;
    const int64_t rows = whole ? 1 : scratch.planes_y * scratch.height;
    for (int64_t column = 0; column < tap_columns_; ++column) {
      const Tap& tap = x_axes_[0].phases[0].taps[static_cast<size_t>(column)];
      T* to = a + column * slivers * sliver_items(block) + n * image_positions(block) * kPitch;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t y_plane = row / scratch.height, y = row % scratch.height;
        const int64_t at =
            ((y_plane * scratch.planes_x + tap.plane) * scratch.height + y) * scratch.width +
            tap.shift;
        pack_panels(gemm_, {.src = by_rows ? copy_rows(y, 1) : from + at * pixel,
                            .src_stride = x_axes_[0].stretch * (by_rows ? channels : pixel),
                            .rows = whole ? image_positions(block) : p_.ow,
                            .cols = cell.rows.size,
                            .dst = to + row * width_ * kPitch,
                            .panel_stride = sliver_items(block),
                            .width = step,
                            .pitch = kPitch});
      }
    }
  }
}

/// B is [panel][run][k/kr][nr][kr].
template <class T>
void WgradEngine<T>::pack_b(const Cell& cell, const Block& block, T* b) const {
  const int64_t length = run_length(block), panel_items = runs(block) * length * gemm_.nr;
  const T* dy = dy_ + (cell.group * ocg_ + cell.outputs.begin) * dy_strides_.c;
  const bool partial = cell.outputs.size % gemm_.nr != 0;
  const bool gaps = partial || (!columns_ && (linear_ || length != p_.ow));
  std::fill_n(b, gaps ? panel_count(gemm_, cell.outputs.size) * panel_items : 0, T{});
  const bool whole = columns_ && width_ == p_.ow;  // an image's rows follow each other in dy too
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t i = 0; i < (whole ? 1 : block.rows); ++i) {
      const T* row = dy + (block.image + n) * dy_strides_.n + (block.row + i) * dy_strides_.y;
      if (columns_) {
        pack_panels(gemm_, {.src = row,
                            .src_stride = dy_strides_.x,
                            .rows = whole ? block.rows * p_.ow : p_.ow,
                            .cols = cell.outputs.size,
                            .dst = b + (n * length + i * width_) * gemm_.nr,
                            .panel_stride = panel_items,
                            .width = gemm_.nr,
                            .pitch = gemm_.nr});
        continue;
      }
      const int64_t run = linear_ ? n : n * block.rows + i;
      for (int64_t o = 0; o < cell.outputs.size; o += gemm_.nr)
        pack_panel_rows(gemm_, row + o * dy_strides_.c, dy_strides_.x, dy_strides_.c, p_.ow,
                        std::min<int64_t>(gemm_.nr, cell.outputs.size - o),
                        linear_ ? i * width_ : 0,
                        b + o / gemm_.nr * panel_items + run * length * gemm_.nr);
    }
  }
}

template void WgradEngine<bfloat16>::pack(const Cell&, const Block&, const Memory&) const;
template void WgradEngine<float>::pack(const Cell&, const Block&, const Memory&) const;
template void WgradEngine<double>::pack(const Cell&, const Block&, const Memory&) const;

}  // namespace quern::kernels
