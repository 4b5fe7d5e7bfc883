// The gradient of the weight where the kernel runs on outer products (gemm_kernel.h):
// dw[o][c][tap] = Σ over pixels of dy[pixel][o] · x[pixel under tap][c].
//
//   for each cell (group, range of blocks of pixels, of rows of A, of columns of B), in parallel
//     for each block of pixels
//       A = mostly the side of fewer channels, packed by columns in slivers of a tile's rows
//       B = the other side, where it lies
//       for each tap, for each tile: C[mr × nr] += Σ runs of pixels A[mr × run] · B[run × nr]
//   dw = the cells' C, summed over the ranges of pixels in their order
//
// B costs nothing to pack where channels are innermost, else it is transposed; A is the smaller and
// serves more tiles. If taps differ, A is dy, and B a zero-padded copy of x in which a tap is an
// offset; a run is a row of outputs, and rows of taps that fall on the padding are left out, as are
// the ends of long rows. With few input channels (the stem) A is x, and the columns of taps are
// rows of A.
#include "quern/ops/kernels/conv/wgrad/outer.h"

#include <algorithm>
#include <span>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Rows of outputs up to here are too short to be runs: the beginning and the end of one take too
/// large a share of its time.
constexpr int64_t kShortRow = 27;

}  // namespace

template <class T, class Operand>
OuterWgrad<T, Operand>::OuterWgrad(const ConvChoice& choice) : WgradOperands(choice) {
  kw_in_k_ = forward_taps(p_).kw_in_k;
  tap_rows_ = p_.kh;
  tap_columns_ = kw_in_k_ ? 1 : p_.kw;
  linear_ = taps() == 1 && !kw_in_k_ && p_.pad_h == 0 && p_.pad_w == 0;
  by_image_ = !kw_in_k_ && !linear_ && p_.ow <= kShortRow;
  if (by_image_)
    for (int64_t s = 0; s < p_.kw; ++s)
      x_axes_.push_back(
          forward_axis(p_.iw, p_.ow, 1, p_.stride_w, p_.pad_w - s * p_.dilation_w, 1));
  else if (kw_in_k_) x_axes_ = {plain_forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w)};
  else x_axes_ = {forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w, p_.dilation_w)};
  // With few pixels, dw itself is what costs: with dy as A it comes out in its own order and is
  // written once.
  const bool many_pixels = p_.n * p_.oh * p_.ow > icg_ + ocg_;
  x_is_a_ = kw_in_k_ || (linear_ && icg_ < ocg_ && many_pixels);
  cells_ = {.groups = p_.groups,
            .rows = kw_in_k_  ? icg_ * p_.kw
                    : x_is_a_ ? icg_
                              : ocg_,
            .columns = x_is_a_ ? ocg_ : icg_,
            .row_unit = 1,
            .column_unit = gemm_.nr};
  width_ = round_up(p_.ow, gemm_.kr);
  const auto readable = [&](int64_t channels, int64_t pixel) {
    return !kRounds && channels % gemm_.nr == 0 && !collides(pixel);
  };
  const bool strided = p_.stride_h > 1 || p_.stride_w > 1;
  // A is packed from where it lies unless rows or images of it would tear groups of kr columns, or
  // channels are not innermost and there is more to do than to transpose.
  const bool tears = linear_ && p_.oh * p_.ow % gemm_.kr != 0;
  const bool x_apart = x_strides_.c != 1, dy_apart = dy_strides_.c != 1;
  x_copied_ =
      !linear_ || (x_is_a_ ? (strided && p_.ow % gemm_.kr != 0) ||
                                 (x_apart && (kRounds || p_.maps || tears || p_.stride_w > 1))
                           : strided || p_.maps || x_apart || !readable(icg_, p_.ic));
  dy_copied_ = x_is_a_ ? dy_apart || !readable(ocg_, p_.oc) : dy_apart && (kRounds || tears);
  choose_split();
  choose_blocks();
}

/// The sums of a cell should stay in L2 from one of its blocks to the next. (To pack A and copy B
/// once for all cells, in a pass before, is slower: that pass waits for memory, while a cell's
/// blocks have been prefetched by the tiles before.)
template <class T, class Operand>
void OuterWgrad<T, Operand>::choose_split() {
  const double sums = static_cast<double>(taps() * cells_.rows * cells_.columns) * sizeof(Acc);
  const double pixels = static_cast<double>(p_.n * p_.oh * p_.ow) * sizeof(T);
  constexpr double copied = 3;  // as expensive as reading, or writing
  const double a = pixels * static_cast<double>(cells_.rows) * copied;
  const double b = pixels * static_cast<double>(cells_.columns) *
                   ((x_is_a_ ? dy_copied_ : x_copied_) ? copied : 1);
  cells_.split(multiplications(), ceil_div(cells_.rows, mr()), p_.n * p_.oh,
               [&](int64_t rows, int64_t columns, int64_t parts) {
                 const double room = static_cast<double>(cache::outer_sums(parts > 1));
                 const double cell_sums = sums / static_cast<double>(rows * columns);
                 return a * static_cast<double>(columns) + b * static_cast<double>(rows) +
                        (parts > 1 ? static_cast<double>(2 * parts + 1) : 1) * sums +
                        (cell_sums > room ? 1000 * cell_sums : 0);
               });
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::choose_blocks() {
  const int64_t most_rows = cells_.max_rows(), most_columns = cells_.max_columns();
  const auto bytes = [&](int64_t rows) {
    const Block block{.image = 0, .images = 1, .row = 0, .rows = rows};
    const int64_t b =
        x_is_a_ ? pixels(block) : scratch(block).image() * static_cast<int64_t>(x_axes_.size());
    return (a_items(block, most_rows) + b * most_columns) * terms_ * kItem;
  };
  cells_.block(BlockGrid::within(p_.n, p_.oh, cache::outer_block(), bytes), 2);
  direct_ = !x_is_a_ && taps() == 1 && cells_.pixel_parts == 1;
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::run_whole(int64_t index, Acc* dw) const {
  const Cell cell = cells_[index];
  if (direct_)
    return sum_up(index,
                  {dw + (cell.group * ocg_ + cell.rows.begin) * icg_ + cell.columns.begin, icg_});
  const Workspace sums(sums_items() * static_cast<int64_t>(sizeof(Acc)));
  run_cell(index, sums.as<Acc>());
  const PartSpan part("merge");
  merge(cell, 0, cell.rows.size, sums.as<Acc>(), dw);
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::sum_up(int64_t index, const Sums& sums) const {
  const Cell cell = cells_[index];
  const Block largest = cells_.grid[0];
  const int64_t a = terms_ * a_items(largest, cell.rows.size);
  const int64_t x =
      round_up(x_items(largest, x_channels(cell).size) * static_cast<int64_t>(x_axes_.size()), 64);
  const int64_t dy = round_up(dy_items(largest, dy_channels(cell).size), 64);
  const Workspace operands((a + terms_ * (x_is_a_ ? dy : x)) * kItem);
  const Workspace source((x_is_a_ ? x : dy) * static_cast<int64_t>(sizeof(T)));
  const Memory memory{
      .a = operands.as<Operand>(), .source = source.as<T>(), .b = operands.as<Operand>() + a};
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = cells_.grid[cell.blocks.begin + i];
    const Source<Operand> packed = pack(cell, block, memory);
    Prefetch prefetch;
    cells_.next(index, cell, i, [&](const Cell& c, const Block& b) {
      prefetch = prefetch_of(b, x_channels(c), dy_channels(c), sizeof(T));
    });
    multiply(cell, block, memory.a, packed, sums, i == 0, prefetch);
  }
}

template <class T, class Operand>
typename OuterWgrad<T, Operand>::Runs OuterWgrad<T, Operand>::runs(const Block& block,
                                                                   const Tap& ty, int64_t column,
                                                                   int64_t channels,
                                                                   int64_t pixel) const {
  if (linear_) return {.a = {0}, .b = {0}, .k = pixels(block)};
  const Scratch layout = scratch(block);
  const auto row_of = [&](int64_t source) {  // the block's first that reads `source` or beyond
    const int64_t distance = source - ty.offset;
    const int64_t row = distance <= 0 ? 0 : ceil_div(distance, p_.stride_h);
    return std::clamp<int64_t>(row - block.row, 0, block.rows);
  };
  const int64_t top = row_of(0), bottom = row_of(p_.ih);
  Runs runs{.a = {}, .b = {}, .k = p_.ow};
  if (by_image_) {
    const Axis& axis = x_axes_[static_cast<size_t>(column)];
    const Tap tx = axis.tap(axis.phase(0), 0);
    // Groups of A's columns start at even pixels: one more before the first meets padding in B.
    const int64_t begin = top * p_.ow / gemm_.kr * gemm_.kr;
    runs.k = bottom * p_.ow - begin;
    for (int64_t n = 0; n < (top < bottom ? block.images : 0); ++n) {
      runs.a.push_back((n * image_columns(block) + begin) * kPitch);
      runs.b.push_back(column * x_items(block, channels) +
                       (n * layout.image() + layout.tap(ty, tx) + begin) * pixel);
    }
    return runs;
  }
  const Phase columns = x_axes_[0].phase(0);
  const Tap tx = x_axes_[0].tap(columns, column);
  int64_t begin = 0;
  if (!x_is_a_) {  // padding at the ends of a row is left out
    const auto [first, end] = x_axes_[0].live_outputs(columns, tx);
    if (first >= end) return runs;
    begin = first / gemm_.kr * gemm_.kr;
    runs.k = std::min(p_.ow, round_up(end, gemm_.kr)) - begin;
  }
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t i = top; i < bottom; ++i) {
      const int64_t output = n * block.rows + i;
      if (x_is_a_) {
        const int64_t row =
            (n * layout.planes_y + ty.plane) * layout.height + ty.shift + i;  // of the copy
        runs.a.push_back(row * width_ * kPitch);
        runs.b.push_back(output * p_.ow * pixel);
      } else {
        runs.a.push_back((output * width_ + begin) * kPitch);
        runs.b.push_back((n * layout.image() + layout.tap(ty, tx) + i * layout.width + begin) *
                         pixel);
      }
    }
  }
  return runs;
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::multiply(const Cell& cell, const Block& block, const Operand* a,
                                      const Source<Operand>& b, const Sums& sums, bool first,
                                      Prefetch& prefetch) const {
  const int64_t step = even_piece(cell.rows.size, mr()), sliver = a_columns(block) * kPitch;
  const int64_t panels = ceil_div(cell.columns.size, gemm_.nr);
  const int64_t a_term = a_items(block, cell.rows.size);
  const auto products =
      std::span(kTermProducts).first(static_cast<size_t>(term_products(bf16_terms_)));
  std::vector<const void*> run_a, run_b;
  const Phase phase = y_axis_.phase(0);
  for (int64_t tap = 0; tap < phase.taps; ++tap) {
    const Tap ty = y_axis_.tap(phase, tap);
    for (int64_t column = 0; column < tap_columns_; ++column) {
      const Runs runs = this->runs(block, ty, column, x_channels(cell).size, b.pixel);
      const size_t count = runs.a.size() * products.size();
      const int64_t steps =
          std::max<int64_t>(1, static_cast<int64_t>(count) * ceil_div(runs.k, gemm_.kr));
      Acc* const c = sums.at + (ty.kernel * tap_columns_ + column) * cells_.max_rows() * sums.ld;
      run_a.resize(count), run_b.resize(count * static_cast<size_t>(panels));
      for (int64_t panel = 0; panel < panels; ++panel)
        for (size_t r = 0; r < count; ++r)
          run_b[static_cast<size_t>(panel) * count + r] = b.at + runs.b[r / products.size()] +
                                                          products[r % products.size()].b * b.term +
                                                          panel * gemm_.nr;
      for (int64_t row = 0; row < cell.rows.size; row += step) {
        for (size_t r = 0; r < count; ++r)
          run_a[r] = a + row / step * sliver + runs.a[r / products.size()] +
                     products[r % products.size()].a * a_term;
        for (int64_t panel = 0; panel < panels; ++panel) {
          const Prefetch::Lines lines = prefetch.next(steps, b.at);
          const GemmTile tile{
              .m = std::min(step, cell.rows.size - row),
              .n = std::min<int64_t>(gemm_.nr, cell.columns.size - panel * gemm_.nr),
              .k = runs.k,
              .batch = static_cast<int64_t>(count),
              .a = run_a.data(),
              .lda = gemm_.kr * kPitch,
              .b = run_b.data() + panel * static_cast<int64_t>(count),
              .ldb = b.pixel,
              .prefetch = lines.at,
              .prefetch_step = lines.step,
              .c = c + row * sums.ld + panel * gemm_.nr,
              .ldc = sums.ld,
              .accumulate = !first};
          if (tile.batch > 0) {
            gemm_.run_outer(tile);
          } else if (first) {
            for (int64_t i = 0; i < tile.m; ++i)
              std::fill_n(static_cast<Acc*>(tile.c) + i * sums.ld, tile.n, Acc{});
          }
        }
      }
    }
  }
}

/// dw of some rows of A, put where dw has them: [output channel][input channel][tap].
template <class T, class Operand>
void OuterWgrad<T, Operand>::merge(const Cell& cell, int64_t row0, int64_t rows, const Acc* all,
                                   Acc* dw) const {
  const int64_t columns = cell.columns.size, first = cell.rows.begin + row0;
  const int64_t ld = cells_.max_columns(), tap_items = cells_.max_rows() * ld;
  const auto sum = [&](int64_t row, int64_t tap, Acc* to) {
    cells_.add_ranges(all + tap * tap_items + (row0 + row) * ld, sums_items(), columns, to);
  };
  const int64_t line = ld + 16;  // does not collide with the next in a cache set
  if (!x_is_a_) {
    std::vector<Acc> sums(static_cast<size_t>(cells_.pixel_parts > 1 ? taps() * line : 0));
    for (int64_t i = 0; i < rows; ++i) {
      Acc* to = dw + ((cell.group * ocg_ + first + i) * icg_ + cell.columns.begin) * taps();
      if (taps() == 1) {
        sum(i, 0, to);
        continue;
      }
      const Acc* from = all + (row0 + i) * ld;
      int64_t step = tap_items;  // to the next tap
      if (cells_.pixel_parts > 1) {
        for (int64_t tap = 0; tap < taps(); ++tap) sum(i, tap, sums.data() + tap * line);
        from = sums.data(), step = line;
      }
      copy_matrix(sizeof(Acc), from, 1, step, to, taps(), columns, taps());
    }
    return;
  }
  Acc* const to = dw + (cell.group * ocg_ + cell.columns.begin) * icg_ * p_.kh * p_.kw;
  const int64_t at_once = kw_in_k_ ? 64 : 16;
  std::vector<Acc> sums(static_cast<size_t>(std::min(at_once, rows) * line));
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    const int64_t count = std::min(at_once, rows - begin);
    for (int64_t tap = 0; tap < taps(); ++tap) {
      for (int64_t i = 0; i < count; ++i) sum(begin + i, tap, sums.data() + i * line);
      if (!kw_in_k_) {
        copy_matrix(sizeof(Acc), sums.data(), 1, line, to + first + begin, icg_, columns, count);
        continue;
      }
      const int64_t row = first + begin;  // column of taps · icg + input channel, a row of taps
      for (int64_t c = 0; c < icg_; ++c) {
        const int64_t column = ceil_div(std::max<int64_t>(row - c, 0), icg_);
        const int64_t after = ceil_div(std::max<int64_t>(row + count - c, 0), icg_);
        if (column == after) continue;
        copy_matrix(sizeof(Acc), sums.data() + (column * icg_ + c - row) * line, 1, icg_ * line,
                    to + (c * p_.kh + tap) * p_.kw + column, icg_ * p_.kh * p_.kw, columns,
                    after - column);
      }
    }
  }
}

template class OuterWgrad<bfloat16, bfloat16>;
template class OuterWgrad<float, float>;
template class OuterWgrad<float, bfloat16>;
template class OuterWgrad<double, double>;

}  // namespace quern::kernels
