// The gradient of the weight where channels are innermost and the kernel runs on outer products
// (gemm_kernel.h): dw[o][c][tap] = Σ over pixels of dy[pixel][o] · x[pixel under tap][c].
//
//   for each cell (group, range of blocks of pixels, of rows of A, of columns of B), in parallel
//     for each block of pixels
//       A = mostly the side of fewer channels, packed by columns in slivers of a tile's rows
//       B = the other side, where it lies
//       for each tap, for each tile: C[mr × nr] += Σ runs of pixels A[mr × run] · B[run × nr]
//   dw = the cells' C, summed over the ranges of pixels in their order
//
// B costs nothing to pack, A is the smaller and serves more tiles. If taps differ, A is dy, and B a
// zero-padded copy of x in which a tap is an offset; a run is a row of outputs, and rows of taps that
// fall on the padding are left out. With few input channels (the stem) A is x, and the columns of taps
// are rows of A.
#include "quern/ops/kernels/conv/wgrad/outer.h"
#include "quern/ops/kernels/pack/matrix.h"

#include <algorithm>
#include <span>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Rows of outputs up to here are too short to be runs: in bf16, runs of 28 pixels cost 3% more than long
/// ones, of 14 pixels 11%, of 7 pixels 30%.
constexpr int64_t kShortRow = 27;

/// Cells that a problem is cut into at least, where its shape allows.
constexpr int64_t kCells = 8;

}  // namespace

template <class T, class Operand>
OuterWgrad<T, Operand>::OuterWgrad(const ConvPlan& plan, const T* x, const T* dy,
                                   const ChannelMap& map)
    : p_(linearised(plan.problem)),
      gemm_(*plan.gemm),
      bf16_terms_(plan.bf16_terms),
      terms_(term_copies(bf16_terms_)),
      x_(x),
      dy_(dy),
      map_(map),
      icg_(p_.ic / p_.groups),
      ocg_(p_.oc / p_.groups),
      x_strides_(p_.format, p_.ic, p_.ih, p_.iw),
      dy_strides_(p_.format, p_.oc, p_.oh, p_.ow),
      y_axis_(forward_axis(p_.ih, p_.oh, p_.kh, p_.stride_h, p_.pad_h, p_.dilation_h)) {
  folded_ = forward_taps(p_).folded;
  tap_rows_ = p_.kh;
  tap_columns_ = folded_ ? 1 : p_.kw;
  linear_ = taps() == 1 && !folded_ && p_.pad_h == 0 && p_.pad_w == 0;
  by_image_ = !folded_ && !linear_ && p_.ow <= kShortRow;
  if (by_image_)
    for (int64_t s = 0; s < p_.kw; ++s)
      x_axes_.push_back(
          forward_axis(p_.iw, p_.ow, 1, p_.stride_w, p_.pad_w - s * p_.dilation_w, 1));
  else if (folded_) x_axes_ = {plain_forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w)};
  else x_axes_ = {forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w, p_.dilation_w)};
  // With few pixels, dw itself is what costs: rows of dy give it in its own order, to be written once
  // (512→2048 channels at 7×7: 0.85 of the time in bf16, 0.91 in f32; 256→1024 at 14×14: 1.02 and 1.05).
  const bool many_pixels = p_.n * p_.oh * p_.ow > icg_ + ocg_;
  x_is_a_ = folded_ || (linear_ && icg_ < ocg_ && many_pixels);
  a_rows_ = folded_ ? icg_ * p_.kw : x_is_a_ ? icg_ : ocg_;
  b_columns_ = x_is_a_ ? ocg_ : icg_;
  width_ = round_up(p_.ow, gemm_.kr);
  const auto readable = [&](int64_t channels, int64_t pixel) {
    return !kRounds && channels % gemm_.nr == 0 && !collides(pixel);
  };
  const bool strided = p_.stride_h > 1 || p_.stride_w > 1;
  // A is packed from x where it lies unless rows of it would tear groups of kr columns.
  x_copied_ = !linear_ || (x_is_a_ ? strided && p_.ow % gemm_.kr != 0
                                   : strided || map.scale || !readable(icg_, p_.ic));
  dy_copied_ = x_is_a_ && !readable(ocg_, p_.oc);
  choose_split();
  choose_blocks();
}

/// Cells are the ranges of pixels, of rows and of columns that cost the least: every range of columns
/// packs A again, every range of rows reads or copies B again, partial sums are written and read. The
/// sums of a cell should stay in L2 from one of its blocks to the next; half of it, if their cells
/// have many. (A pass of its own that packs A and copies B once for all cells took 1.03 to 1.08 times as
/// long: it waits for memory, while a cell's blocks have been fetched by the tiles before.)
template <class T, class Operand>
void OuterWgrad<T, Operand>::choose_split() {
  const int64_t wanted = std::min(wanted_cells(multiplications()), kCells);
  const double sums = static_cast<double>(taps() * a_rows_ * b_columns_) * sizeof(Acc);
  const double pixels = static_cast<double>(p_.n * p_.oh * p_.ow) * sizeof(T);
  constexpr double copied = 3;  // as expensive as reading, or writing
  const double a = pixels * static_cast<double>(a_rows_) * copied;
  const double b =
      pixels * static_cast<double>(b_columns_) * ((x_is_a_ ? dy_copied_ : x_copied_) ? copied : 1);
  double least = 0;
  for (int64_t rows = 1; rows <= ceil_div(a_rows_, gemm_.mr); rows *= 2) {
    for (int64_t columns = 1; columns <= panel_count(gemm_, b_columns_); columns *= 2) {
      const int64_t parts = std::min(p_.n * p_.oh, ceil_div(wanted, p_.groups * rows * columns));
      const double room = static_cast<double>(blocking::outer_sums(parts > 1));
      const double cell_sums = sums / static_cast<double>(rows * columns);
      const double cost = a * static_cast<double>(columns) + b * static_cast<double>(rows) +
                          (parts > 1 ? static_cast<double>(2 * parts + 1) : 1) * sums +
                          (cell_sums > room ? 1000 * cell_sums : 0);
      if (least > 0 && cost >= least) continue;
      least = cost;
      row_parts_ = rows, column_parts_ = columns, pixel_parts_ = parts;
    }
  }
  max_rows_ = ceil_div(a_rows_, row_parts_);
  max_columns_ = ceil_div(panel_count(gemm_, b_columns_), column_parts_) * gemm_.nr;
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::choose_blocks() {
  grid_ = BlockGrid::within(p_.n, p_.oh, blocking::outer_block(), [&](int64_t rows) {
    const Block block{.image = 0, .images = 1, .row = 0, .rows = rows};
    return (a_items(block, max_rows_) +
            (x_is_a_ ? pixels(block)
                     : scratch(block).image() * static_cast<int64_t>(x_axes_.size())) *
                max_columns_) *
           terms_ * kItem;
  });
  while (grid_.count() < pixel_parts_ && grid_.block_images > 1)
    grid_.block_images = ceil_div(grid_.block_images, 2);
  while (grid_.count() < pixel_parts_ && grid_.block_rows > 2)
    grid_.block_rows = ceil_div(grid_.block_rows, 2);
  pixel_parts_ = std::min(pixel_parts_, grid_.count());
  direct_ = !x_is_a_ && taps() == 1 && pixel_parts_ == 1;
}

/// Cells are [group][range of pixels][range of rows][range of columns].
template <class T, class Operand>
typename OuterWgrad<T, Operand>::Cell OuterWgrad<T, Operand>::cell(int64_t index, Acc* sums) const {
  const int64_t part = index / channel_cells(), channels = index % channel_cells();
  const Extent panels =
      piece(panel_count(gemm_, b_columns_), column_parts_, channels % column_parts_);
  return {.group = part / pixel_parts_,
          .blocks = piece(grid_.count(), pixel_parts_, part % pixel_parts_),
          .rows = piece(a_rows_, row_parts_, channels / column_parts_),
          .columns = {panels.begin * gemm_.nr,
                      std::min(panels.size * gemm_.nr, b_columns_ - panels.begin * gemm_.nr)},
          .sums = sums,
          .ld = max_columns_};
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::run(Acc* dw) {
  const int64_t cells = this->cells(), items = sums_items();
  const auto memory = [&](int64_t sums) {
    return Workspace(sums * items * static_cast<int64_t>(sizeof(Acc)));
  };
  if (direct_)
    return parallel_pieces(cells, multiplications() / cells, [&](int64_t i) {
      Cell whole = cell(i, dw);
      whole.sums += (whole.group * ocg_ + whole.rows.begin) * icg_ + whole.columns.begin;
      whole.ld = icg_;
      run_cell(i, whole);
    });
  if (pixel_parts_ == 1)  // merged while the sums are in L2
    return parallel_pieces(cells, multiplications() / cells, [&](int64_t i) {
      const Workspace sums = memory(1);
      const Cell whole = cell(i, sums.as<Acc>());
      run_cell(i, whole);
      merge(whole, 0, whole.rows.size, dw);
    });
  const Workspace all = memory(cells);
  parallel_pieces(cells, multiplications() / cells,
                  [&](int64_t i) { run_cell(i, cell(i, all.as<Acc>() + i * items)); });
  const int64_t some = 16, pieces = ceil_div(max_rows_, some);
  parallel_pieces(
      p_.groups * channel_cells() * pieces, pixel_parts_ * items / pieces, [&](int64_t i) {
        const int64_t group = i / pieces / channel_cells();
        const int64_t index = group * pixel_parts_ * channel_cells() + i / pieces % channel_cells();
        const Cell first = cell(index, all.as<Acc>() + index * items);
        const int64_t row = i % pieces * some;
        merge(first, row, std::min(some, first.rows.size - row), dw);
      });
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::run_cell(int64_t index, const Cell& cell) const {
  const Block largest = grid_[0];
  const int64_t a = terms_ * a_items(largest, cell.rows.size);
  const int64_t x =
      round_up(x_items(largest, x_channels(cell).size) * static_cast<int64_t>(x_axes_.size()), 64);
  const int64_t b = terms_ * (x_is_a_ ? dy_items(largest, cell.columns.size) : x);
  const Workspace operands((a + b) * kItem);
  const Workspace source(x_is_a_ ? x * static_cast<int64_t>(sizeof(T)) : 0);
  const Memory memory{
      .a = operands.as<Operand>(), .x = source.as<T>(), .b = operands.as<Operand>() + a};
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = grid_[cell.blocks.begin + i];
    const Source<Operand> packed = pack(cell, block, memory);
    Ahead ahead;
    if (i + 1 < cell.blocks.size) {
      ahead = this->ahead(cell, grid_[cell.blocks.begin + i + 1]);
    } else if (index + 1 < cells()) {  // most often of this thread, too
      const Cell next = this->cell(index + 1, nullptr);
      ahead = this->ahead(next, grid_[next.blocks.begin]);
    }
    multiply(cell, block, memory.a, packed, i == 0, ahead);
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
  const Tap tx = x_axes_[0].tap(x_axes_[0].phase(0), column);
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t i = top; i < bottom; ++i) {
      const int64_t output = n * block.rows + i;
      if (x_is_a_) {
        const int64_t row =
            (n * layout.planes_y + ty.plane) * layout.height + ty.shift + i;  // of the copy
        runs.a.push_back(row * width_ * kPitch);
        runs.b.push_back(output * p_.ow * pixel);
      } else {
        runs.a.push_back(output * width_ * kPitch);
        runs.b.push_back((n * layout.image() + layout.tap(ty, tx) + i * layout.width) * pixel);
      }
    }
  }
  return runs;
}

template <class T, class Operand>
Ahead OuterWgrad<T, Operand>::ahead(const Cell& cell, const Block& block) const {
  Ahead ahead;
  const auto add = [&](const T* base, const ImageStrides& strides, const Extent& channels,
                       int64_t begin, int64_t end) {
    const int64_t items = (block.images - 1) * strides.n + (end - begin) * strides.y;
    constexpr int64_t item = static_cast<int64_t>(sizeof(T));
    ahead.add(base + block.image * strides.n + begin * strides.y + channels.begin,
              channels.size * item, strides.x * item, items / strides.x);
  };
  add(dy_, dy_strides_, dy_channels(cell), block.row, block.row + block.rows);
  const int64_t begin = std::max<int64_t>(block.row * p_.stride_h - p_.pad_h, 0);
  const int64_t end = std::min(p_.ih, (block.row + block.rows - 1) * p_.stride_h - p_.pad_h +
                                          (p_.kh - 1) * p_.dilation_h + 1);
  if (begin < end) add(x_, x_strides_, x_channels(cell), begin, end);
  return ahead;
}

template <class T, class Operand>
void OuterWgrad<T, Operand>::multiply(const Cell& cell, const Block& block, const Operand* a,
                                      const Source<Operand>& b, bool first, Ahead& ahead) const {
  const int64_t step = even_piece(cell.rows.size, gemm_.mr), sliver = a_columns(block) * kPitch;
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
      Acc* const sums = cell.sums + (ty.kernel * tap_columns_ + column) * max_rows_ * cell.ld;
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
          const Ahead::Lines lines = ahead.next(steps, b.at);
          const GemmTile tile{
              .m = std::min(step, cell.rows.size - row),
              .n = std::min<int64_t>(gemm_.nr, cell.columns.size - panel * gemm_.nr),
              .k = runs.k,
              .batch = static_cast<int64_t>(count),
              .a = run_a.data(),
              .lda = gemm_.kr * kPitch,
              .b = run_b.data() + panel * static_cast<int64_t>(count),
              .ldb = b.pixel,
              .ahead = lines.at,
              .ahead_step = lines.step,
              .c = sums + row * cell.ld + panel * gemm_.nr,
              .ldc = cell.ld,
              .accumulate = !first};
          if (tile.batch > 0) {
            gemm_.run_outer(tile);
          } else if (first) {
            for (int64_t i = 0; i < tile.m; ++i)
              std::fill_n(static_cast<Acc*>(tile.c) + i * cell.ld, tile.n, Acc{});
          }
        }
      }
    }
  }
}

/// dw of some rows of A: the partial sums of the ranges of pixels, in their order, put where dw has
/// them: [output channel][input channel][tap].
template <class T, class Operand>
void OuterWgrad<T, Operand>::merge(const Cell& cell, int64_t row0, int64_t rows, Acc* dw) const {
  const int64_t range = channel_cells() * sums_items();  // from one range of pixels to the next
  const int64_t columns = cell.columns.size, first = cell.rows.begin + row0;
  const auto sum = [&](int64_t row, int64_t tap, Acc* to) {
    const Acc* from = cell.sums + (tap * max_rows_ + row0 + row) * cell.ld;
    if (pixel_parts_ == 1) std::copy_n(from, columns, to);
    else
      for (int64_t j = 0; j < columns; ++j) to[j] = from[j] + from[range + j];
    for (int64_t part = 2; part < pixel_parts_; ++part)
      for (int64_t j = 0; j < columns; ++j) to[j] += from[part * range + j];
  };
  const int64_t line = max_columns_ + 16;  // does not collide with the next in a cache set
  if (!x_is_a_) {
    std::vector<Acc> sums(static_cast<size_t>(pixel_parts_ > 1 ? taps() * line : 0));
    for (int64_t i = 0; i < rows; ++i) {
      Acc* to = dw + ((cell.group * ocg_ + first + i) * icg_ + cell.columns.begin) * taps();
      if (taps() == 1) {
        sum(i, 0, to);
        continue;
      }
      const Acc* from = cell.sums + (row0 + i) * cell.ld;
      int64_t step = max_rows_ * cell.ld;  // to the next tap
      if (pixel_parts_ > 1) {
        for (int64_t tap = 0; tap < taps(); ++tap) sum(i, tap, sums.data() + tap * line);
        from = sums.data(), step = line;
      }
      copy_matrix(sizeof(Acc), from, 1, step, to, taps(), columns, taps());
    }
    return;
  }
  Acc* const to = dw + (cell.group * ocg_ + cell.columns.begin) * icg_ * p_.kh * p_.kw;
  const int64_t at_once = 16;
  std::vector<Acc> sums(static_cast<size_t>(at_once * line));
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    const int64_t count = std::min(at_once, rows - begin);
    for (int64_t tap = 0; tap < taps(); ++tap) {
      for (int64_t i = 0; i < count; ++i) sum(begin + i, tap, sums.data() + i * line);
      if (!folded_) {
        copy_matrix(sizeof(Acc), sums.data(), 1, line, to + first + begin, icg_, columns, count);
        continue;
      }
      for (int64_t i = 0; i < count; ++i) {  // column of taps · icg + input channel, a row of taps
        const int64_t row = first + begin + i;
        const int64_t at = (row % icg_ * p_.kh + tap) * p_.kw + row / icg_;
        for (int64_t o = 0; o < columns; ++o)
          to[o * icg_ * p_.kh * p_.kw + at] = sums[static_cast<size_t>(i * line + o)];
      }
    }
  }
}

template class OuterWgrad<bfloat16, bfloat16>;
template class OuterWgrad<float, float>;
template class OuterWgrad<float, bfloat16>;
template class OuterWgrad<double, double>;

}  // namespace quern::kernels
