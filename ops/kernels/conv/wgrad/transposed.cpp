// The gradient of the weight with one operand transposed:
//
//   dw[o][c][tap] = Σ over pixels of dy[pixel][o] · x[pixel under tap][c]
//
//   for each cell (group, range of blocks of pixels, of rows of A, of columns of B), in parallel
//     for each block of pixels
//       A = x transposed to [channel][position], zero-padded as in axis.h
//       B = dy in panels [pixel][nr output channels]
//       for each tile of A's rows, for each panel, for each tap
//         C[mr × nr] += Σ runs of pixels A[mr × run] · B[run × nr]
//   dw = the cells' C, summed over the ranges of pixels in their order
//
// Each operand is packed once a block and serves all tiles of dW. A tap is an offset into A. A run
// of pixels is a row of outputs, so that padding is left out; where rows are too short for the
// kernel's k_multiple, it is all rows of the block's image with the padding between them, which
// meets zeros in B. With few input channels (the stem), the columns of the taps become rows of A.
// Without taps A may be dy and B x: the side of fewer channels, since to transpose costs more than
// to interleave.
//
// Kernels that run on outer products have a faster way where channels are innermost: outer.cpp.
#include "quern/ops/kernels/conv/wgrad/transposed.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/wgrad/outer.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Positions of a row of scratch, even ones for pairs. The zeros at its end may be those with which
/// the next row begins.
int64_t row_width(const Axis& axis, const GemmKernel& gemm) {
  const int64_t extent = axis.extent(axis.output);
  int64_t left = extent, right = extent;
  for (int64_t plane = 0; plane < axis.planes; ++plane) {
    const Axis::Range inside = axis.inside(plane, 0, extent);
    left = std::min(left, inside.begin), right = std::min(right, extent - inside.end);
  }
  return round_up(std::max(axis.output, extent - std::min(left, right)), gemm.kr);
}

}  // namespace

template <class T, class Operand>
TransposedWgrad<T, Operand>::TransposedWgrad(const ConvChoice& choice) : WgradOperands(choice) {
  kw_in_k_ = forward_taps(p_).kw_in_k;
  if (kw_in_k_)
    for (int64_t s = 0; s < p_.kw; ++s)
      x_axes_.push_back(forward_axis(p_.iw, p_.ow, 1, p_.stride_w, p_.pad_w - s, 1));
  else x_axes_ = {forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w, p_.dilation_w)};
  tap_rows_ = p_.kh;
  tap_columns_ = kw_in_k_ ? 1 : p_.kw;
  pairs_ = p_.format == MemoryFormat::channels_last && gemm_.kr == 2 && gemm_.nr % 16 == 0 &&
           packs_panels(panel_format(gemm_));
  const bool one_tap = taps() == 1 && !kw_in_k_ && p_.pad_h == 0 && p_.pad_w == 0;
  dense_ = pairs_ && one_tap && p_.stride_h == 1 && p_.stride_w == 1;
  // With few pixels, dw itself is what costs: with dy as A it comes out in its own order.
  const bool many_pixels = p_.n * p_.oh * p_.ow > icg_ + ocg_;
  x_is_a_ = !pairs_ || !one_tap || (icg_ < ocg_ && many_pixels);
  const int64_t rows = x_is_a_ ? icg_ * static_cast<int64_t>(x_axes_.size()) : ocg_;
  cells_ = {.groups = p_.groups,
            .rows = rows,
            .columns = x_is_a_ ? ocg_ : icg_,
            .row_unit = even_piece(rows, gemm_.mr),
            .column_unit = gemm_.nr};
  width_ = dense_ ? p_.ow : kw_in_k_ ? round_up(p_.ow, gemm_.kr) : row_width(x_axes_[0], gemm_);
  // Rounding every row up to k_multiple against reading the padding between rows.
  linear_ = padded_k(gemm_, p_.ow) >= width_;
  if (!linear_) width_ = x_axes_[0].extent(p_.ow);
  choose_split();
  choose_blocks();
}

/// The sums of a cell should stay in L2 from one of its blocks to the next. To transpose is as
/// expensive as to read or write three times as much, to interleave twice.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::choose_split() {
  const double sums = static_cast<double>(taps() * cells_.rows * cells_.columns) * sizeof(Acc);
  const double pixels = static_cast<double>(p_.n * p_.oh * p_.ow) * sizeof(T);
  const double a = pixels * static_cast<double>(cells_.rows) * 3;
  const double b = pixels * static_cast<double>(cells_.columns) * 2;
  cells_.split(std::min(wanted_cells(multiplications()), kWgradCells),
               ceil_div(cells_.rows, cells_.row_unit), p_.n * p_.oh,
               [&](int64_t rows, int64_t columns, int64_t parts) {
                 const double room = static_cast<double>(cache::transposed_sums(parts > 1));
                 const double cell_sums = sums / static_cast<double>(rows * columns);
                 return a * static_cast<double>(columns) + b * static_cast<double>(rows) +
                        (parts > 1 ? static_cast<double>(2 * parts + 1) : 1) * sums +
                        (cell_sums > room ? 1000 * cell_sums : 0);
               });
}

template <class T, class Operand>
void TransposedWgrad<T, Operand>::choose_blocks() {
  const bool amx = gemm_.isa == Isa::amx;
  const auto share = [](int64_t bytes, int64_t of) {
    return static_cast<double>(bytes) / static_cast<double>(of);
  };
  // Shares of L2 and, of an AMX tile, L1: in thousandths, of which a block takes all.
  const auto budget = [&](int64_t rows) {
    const Block block{.image = 0, .images = 1, .row = 0, .rows = rows};
    const int64_t all = a_items(cells_.max_rows(), block) + b_items(cells_.max_columns(), block);
    const int64_t tile =
        a_items(cells_.row_unit, block) + (taps() > 1 ? b_items(gemm_.nr, block) : 0);
    const double most = std::max(share(all * terms_ * kItem, cache::transposed_block()),
                                 amx ? share(tile * terms_ * kItem, cache::kTransposedTile) : 0);
    return 1 + static_cast<int64_t>(1000 * most);
  };
  cells_.cut(BlockGrid::within(p_.n, p_.oh, 1000, budget), 2);
}

template <class T, class Operand>
int64_t TransposedWgrad<T, Operand>::row_items(const Block& block) const {
  const int64_t shared = std::max<int64_t>(0, x_axes_[0].extent(p_.ow) - width_);
  const int64_t items = positions(block) + shared + run_length(block) - run_items(block);
  // An odd number of cache lines: rows of A spread over all sets.
  const int64_t line = 64 / kItem;
  return (ceil_div(items, line) | 1) * line;
}

template <class T, class Operand>
typename TransposedWgrad<T, Operand>::Source TransposedWgrad<T, Operand>::source(const Cell& cell,
                                                                                 bool of_x) const {
  Extent channels = of_x == x_is_a_ ? cell.rows : cell.columns;
  if (of_x && kw_in_k_) channels = {0, icg_};
  const int64_t first = cell.group * (of_x ? icg_ : ocg_) + channels.begin;
  const ImageStrides& strides = of_x ? x_strides_ : dy_strides_;
  return {.at = static_cast<const T*>(of_x ? x_ : dy_) + first * strides.c,
          .strides = strides,
          .channels = {first, channels.size},
          .map = of_x ? from_channel<Acc>(map_, first) : ChannelMap{},
          .stride_y = of_x ? p_.stride_h : 1,
          .stride_x = of_x ? p_.stride_w : 1};
}

template <class T, class Operand>
void TransposedWgrad<T, Operand>::run_whole(int64_t index, Acc* dw) const {
  const Cell cell = cells_[index];
  if (!x_is_a_)
    return sum_up(index,
                  {.at = dw + (cell.group * ocg_ + cell.rows.begin) * icg_ + cell.columns.begin,
                   .tile = cells_.row_unit * icg_,
                   .panel = gemm_.nr,
                   .row = icg_,
                   .tap = 0});
  const Workspace all(sums_items() * static_cast<int64_t>(sizeof(Acc)));
  run_cell(index, all.as<Acc>());
  for (int64_t row = 0; row < cell.rows.size; row += cells_.row_unit)
    merge(cell, row, std::min(cells_.row_unit, cell.rows.size - row), all.as<Acc>(), dw);
}

template <class T, class Operand>
void TransposedWgrad<T, Operand>::sum_up(int64_t index, const Sums& sums) const {
  const KernelUse use(gemm_);
  const Cell cell = cells_[index];
  const Block largest = cells_.grid[0];
  const int64_t a_items = terms_ * this->a_items(cell.rows.size, largest);
  const int64_t b_items = terms_ * this->b_items(cell.columns.size, largest);
  const Workspace operands((a_items + b_items) * kItem);
  const Workspace copied(pairs_ && !dense_ && x_is_a_ && !kw_in_k_
                             ? positions(largest) * cell.rows.size * static_cast<int64_t>(sizeof(T))
                             : 0);
  auto* a = operands.as<Operand>();
  auto* b = a + a_items;
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = cells_.grid[cell.blocks.begin + i];
    pack_a(cell, block, copied.as<T>(), a);
    pack_b(cell, block, b);
    multiply(cell, block, a, b, i == 0, sums);
  }
}

template <class T, class Operand>
typename TransposedWgrad<T, Operand>::Runs TransposedWgrad<T, Operand>::runs(const Cell& cell,
                                                                             const Block& block,
                                                                             const Tap& ty) const {
  Runs runs;
  const int64_t a_term = a_items(cell.rows.size, block), b_term = b_items(cell.columns.size, block);
  for (int64_t run = 0; run < run_count(block); ++run) {
    const int64_t n = linear_ ? run : run / block.rows, i = linear_ ? 0 : run % block.rows;
    const int64_t source = (block.row + i) * p_.stride_h + ty.offset;
    if (!linear_ && (source < 0 || source >= p_.ih)) continue;
    for (const TermProduct& term :
         std::span(kTermProducts).first(static_cast<size_t>(term_products(bf16_terms_)))) {
      runs.a.push_back((dense_ ? 0 : n * scratch(block.rows).image() + i * width_) +
                       term.a * a_term);
      runs.b.push_back(run * run_length(block) * gemm_.nr + term.b * b_term);
    }
  }
  return runs;
}

template <class T, class Operand>
void TransposedWgrad<T, Operand>::multiply(const Cell& cell, const Block& block, const Operand* a,
                                           const Operand* b, bool first, const Sums& sums) const {
  const int64_t length = run_length(block), stride = row_items(block);
  const Phase rows = y_axis_.phase(0), columns = x_axes_[0].phase(0);
  std::vector<Runs> row_runs;
  size_t most = 1;
  for (int64_t r = 0; r < tap_rows_; ++r) {
    row_runs.push_back(runs(cell, block, y_axis_.tap(rows, r)));
    most = std::max(most, row_runs.back().a.size());
  }
  std::vector<const void*> run_a(most), run_b(most);
  for (int64_t row = 0; row < cell.rows.size; row += cells_.row_unit) {
    for (int64_t column = 0; column < cell.columns.size; column += gemm_.nr) {
      Acc* const tile_sums =
          sums.at + row / cells_.row_unit * sums.tile + column / gemm_.nr * sums.panel;
      for (int64_t tap = 0; tap < taps(); ++tap) {
        const Tap ty = y_axis_.tap(rows, tap / tap_columns_);
        const Tap tx = x_axes_[0].tap(columns, tap % tap_columns_);
        const Runs& runs = row_runs[static_cast<size_t>(tap / tap_columns_)];
        const Operand* tap_a = a + row * stride + (dense_ ? 0 : scratch(block.rows).tap(ty, tx));
        for (size_t t = 0; t < runs.a.size(); ++t) {
          run_a[t] = tap_a + runs.a[t];
          run_b[t] = b + column * run_count(block) * length + runs.b[t];
        }
        const GemmTile tile{.m = std::min(cells_.row_unit, cell.rows.size - row),
                            .n = std::min<int64_t>(gemm_.nr, cell.columns.size - column),
                            .k = length,
                            .batch = static_cast<int64_t>(runs.a.size()),
                            .a = run_a.data(),
                            .lda = stride,
                            .b = run_b.data(),
                            .c = tile_sums + tap * sums.tap,
                            .ldc = sums.row,
                            .accumulate = !first};
        if (tile.batch > 0) {
          gemm_.run(tile);
        } else if (first) {
          for (int64_t i = 0; i < tile.m; ++i)
            std::fill_n(static_cast<Acc*>(tile.c) + i * sums.row, tile.n, Acc{});
        }
      }
    }
  }
}

/// dw of a tile's rows.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::merge(const Cell& cell, int64_t row, int64_t rows, const Acc* all,
                                        Acc* dw) const {
  const Sums from = sums(nullptr);
  const int64_t first = cell.rows.begin + row, items = rows * from.row;
  std::vector<Acc> added(static_cast<size_t>(cells_.pixel_parts > 1 ? items : 0));
  for (int64_t column = 0; column < cell.columns.size; column += gemm_.nr) {
    const Acc* tile = all + row / cells_.row_unit * from.tile + column / gemm_.nr * from.panel;
    if (cells_.pixel_parts > 1) {
      cells_.add_ranges(tile, sums_items(), items, added.data());
      tile = added.data();
    }
    const int64_t columns = std::min<int64_t>(gemm_.nr, cell.columns.size - column);
    const int64_t b = cell.group * (x_is_a_ ? ocg_ : icg_) + cell.columns.begin + column;
    if (!x_is_a_) {
      copy_matrix(sizeof(Acc), tile, from.row, 1,
                  dw + (cell.group * ocg_ + first) * icg_ + cell.columns.begin + column, icg_, rows,
                  columns);
    } else if (!kw_in_k_) {
      copy_matrix(sizeof(Acc), tile, 1, gemm_.nr, dw + (b * icg_ + first) * taps(), icg_ * taps(),
                  columns, rows * taps());
    } else {  // a row is column of taps · icg + input channel, a tap a row of them
      for (int64_t i = 0; i < rows * taps(); ++i) {
        const int64_t at = ((first + i / taps()) % icg_ * p_.kh + i % taps()) * p_.kw +
                           (first + i / taps()) / icg_;
        for (int64_t o = 0; o < columns; ++o)
          dw[(b + o) * icg_ * p_.kh * p_.kw + at] = tile[i * gemm_.nr + o];
      }
    }
  }
}

template class TransposedWgrad<bfloat16, bfloat16>;
template class TransposedWgrad<float, float>;
template class TransposedWgrad<float, bfloat16>;
template class TransposedWgrad<double, double>;

std::unique_ptr<const ConvPlan> plan_wgrad(const ConvChoice& choice) {
  std::unique_ptr<const ConvPlan> plan;
  visit_items(choice,
              [&]<class T, class Operand>(std::type_identity<T>, std::type_identity<Operand>) {
                using Outer = OuterWgrad<T, Operand>;
                using Transposed = TransposedWgrad<T, Operand>;
                plan = Outer::takes(choice.problem, *choice.gemm)
                           ? make_conv_plan<WgradPlan<Outer>>(choice)
                           : make_conv_plan<WgradPlan<Transposed>>(choice);
              });
  return plan;
}

}  // namespace quern::kernels
