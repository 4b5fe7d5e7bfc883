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
// Kernels that run on outer products have a faster way: outer.cpp.
#include "quern/ops/kernels/conv/wgrad/transposed.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/wgrad/outer.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Of k, from a prefetch of an AMX tile to the next.
constexpr int64_t kPrefetchStep = 16;

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
  taps_axis_ = forward_axis(p_.iw, p_.ow, p_.kw, p_.stride_w, p_.pad_w, p_.dilation_w);
  x_axis_ = kw_in_k_ ? forward_axis(p_.iw, p_.ow, 1, p_.stride_w, p_.pad_w, 1) : taps_axis_;
  tap_rows_ = p_.kh;
  tap_columns_ = kw_in_k_ ? 1 : p_.kw;
  pairs_ = p_.format == MemoryFormat::channels_last && gemm_.kr == 2 && gemm_.nr % 16 == 0 &&
           packs_panels(panel_format(gemm_));
  const bool one_tap = taps() == 1 && !kw_in_k_ && p_.pad_h == 0 && p_.pad_w == 0;
  dense_ = pairs_ && one_tap;
  x_copied_ = pairs_ && !kw_in_k_ && (!one_tap || p_.stride_h > 1 || p_.stride_w > 1);
  // With few pixels, dw itself is what costs: with dy as A it comes out in its own order.
  const bool many_pixels = p_.n * p_.oh * p_.ow > icg_ + ocg_;
  x_is_a_ = !dense_ || (icg_ < ocg_ && many_pixels);
  const int64_t rows = x_is_a_ ? icg_ * (kw_in_k_ ? p_.kw : 1) : ocg_;
  cells_ = {.groups = p_.groups,
            .rows = rows,
            .columns = x_is_a_ ? ocg_ : icg_,
            .row_unit = even_piece(rows, gemm_.mr),
            .column_unit = gemm_.nr};
  width_ = dense_ ? p_.ow : kw_in_k_ ? round_up(p_.ow, gemm_.kr) : row_width(x_axis_, gemm_);
  // Rounding every row up to k_multiple against reading the padding between rows.
  linear_ = padded_k(gemm_, p_.ow) >= width_;
  if (!linear_) width_ = x_axis_.extent(p_.ow);
  choose_split();
  choose_blocks();
}

/// The sums of a cell should stay in L2 from one of its blocks to the next. What packing costs is
/// counted in reads or writes of as much: more to transpose than to copy or interleave. Where
/// channels are innermost A is transposed, else B.
template <class T, class Operand>
void TransposedWgrad<T, Operand>::choose_split() {
  const double sums = static_cast<double>(taps() * cells_.rows * cells_.columns) * sizeof(Acc);
  const double pixels = static_cast<double>(p_.n * p_.oh * p_.ow) * sizeof(T);
  const double x = static_cast<double>(p_.n * p_.ih * p_.iw * icg_) * sizeof(T);
  const bool innermost = p_.format == MemoryFormat::channels_last;
  const double a = dense_ ? pixels * static_cast<double>(cells_.rows) * 3 : x * (innermost ? 4 : 2);
  const double b = pixels * static_cast<double>(cells_.columns) * (innermost ? 2 : 4);
  cells_.split(multiplications(), ceil_div(cells_.rows, cells_.row_unit), p_.n * p_.oh,
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
  const auto bytes = [&](int64_t rows) {
    const Block block{.image = 0, .images = 1, .row = 0, .rows = rows};
    return (a_items(cells_.max_rows(), block) + b_items(cells_.max_columns(), block)) * terms_ *
           kItem;
  };
  cells_.block(BlockGrid::within(p_.n, p_.oh, cache::transposed_block(amx()), bytes), 2);
  chunk_ = INT64_MAX;
  if (!amx() || !linear_) return;
  const bool several = taps() > 1;
  const int64_t items = cache::transposed_chunk(several) / (terms_ * kItem);
  const int64_t beyond = y_axis_.reach * width_ + x_axis_.reach;  // that taps read
  const int64_t fit =
      (items - cells_.row_unit * beyond) / (cells_.row_unit + (several ? gemm_.nr : 0));
  chunk_ = std::max<int64_t>(fit / gemm_.k_multiple, 4) * gemm_.k_multiple;
}

/// What tiles multiply at a time: all runs, or what L1 keeps of them for several tiles.
template <class T, class Operand>
std::vector<typename TransposedWgrad<T, Operand>::Chunk> TransposedWgrad<T, Operand>::chunks(
    const Block& block) const {
  const int64_t length = run_length(block), runs = run_count(block);
  std::vector<Chunk> chunks;
  if (length <= chunk_) {
    const int64_t step = even_piece(runs, std::max<int64_t>(1, chunk_ / length));
    for (int64_t run = 0; run < runs; run += step)
      chunks.push_back({run, std::min(step, runs - run), 0, length});
  } else {
    const int64_t step = round_up(even_piece(length, chunk_), gemm_.k_multiple);
    for (int64_t run = 0; run < runs; ++run)
      for (int64_t begin = 0; begin < length; begin += step)
        chunks.push_back({run, 1, begin, std::min(step, length - begin)});
  }
  return chunks;
}

template <class T, class Operand>
int64_t TransposedWgrad<T, Operand>::row_items(const Block& block) const {
  const int64_t shared = std::max<int64_t>(0, x_axis_.extent(p_.ow) - width_);
  const int64_t items = positions(block) + shared + run_length(block) - run_items(block);
  // An odd number of cache lines: rows of A spread over all sets.
  const int64_t line = 64 / kItem;
  return (ceil_div(items, line) | 1) * line;
}

template <class T, class Operand>
void TransposedWgrad<T, Operand>::run_whole(int64_t index, Acc* dw) const {
  const Cell cell = cells_[index];
  if (!x_is_a_ && cell.blocks.size == 1)
    return sum_up(index,
                  {.at = dw + (cell.group * ocg_ + cell.rows.begin) * icg_ + cell.columns.begin,
                   .tile = cells_.row_unit * icg_,
                   .panel = gemm_.nr,
                   .row = icg_,
                   .tap = 0});
  const Workspace all(sums_items() * static_cast<int64_t>(sizeof(Acc)));
  run_cell(index, all.as<Acc>());
  const PartSpan part("merge");
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
  const int64_t x_items = x_copied_ ? positions(largest) * channels(cell, true).size : 0;
  const Workspace copied(x_items * static_cast<int64_t>(sizeof(T)));
  auto* a = operands.as<Operand>();
  auto* b = a + a_items;
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = cells_.grid[cell.blocks.begin + i];
    Prefetch prefetch;
    if (pairs_ && amx())
      cells_.next(index, cell, i, [&](const Cell& c, const Block& next) {
        prefetch = prefetch_of(next, channels(c, true), channels(c, false), sizeof(T));
      });
    pack_a(cell, block, copied.as<T>(), a);
    pack_b(cell, block, copied.as<T>(), b);
    multiply(cell, block, a, b, i == 0, sums, prefetch);
  }
}

template <class T, class Operand>
typename TransposedWgrad<T, Operand>::Runs TransposedWgrad<T, Operand>::runs(const Cell& cell,
                                                                             const Block& block,
                                                                             int64_t tap) const {
  Runs runs{.a = {}, .b = {}, .k = run_length(block)};
  const Scratch layout = scratch(block.rows);
  const Tap ty = y_axis_.tap(y_axis_.phase(0), tap / tap_columns_);
  const Phase columns = x_axis_.phase(0);
  const Tap tx = x_axis_.tap(columns, tap % tap_columns_);
  int64_t begin = 0;  // of a row: padding at its ends is left out
  if (!linear_ && !kw_in_k_) {
    const auto [first, end] = x_axis_.live_outputs(columns, tx);
    if (first >= end) return runs;
    begin = first / gemm_.k_multiple * gemm_.k_multiple;
    runs.k = padded_k(gemm_, end) - begin;
  }
  const int64_t a_term = a_items(cell.rows.size, block), b_term = b_items(cell.columns.size, block);
  for (int64_t run = 0; run < run_count(block); ++run) {
    const int64_t n = linear_ ? run : run / block.rows, i = linear_ ? 0 : run % block.rows;
    const int64_t source = (block.row + i) * p_.stride_h + ty.offset;
    if (!linear_ && (source < 0 || source >= p_.ih)) continue;
    for (const TermProduct& term :
         std::span(kTermProducts).first(static_cast<size_t>(term_products(bf16_terms_)))) {
      runs.a.push_back(n * layout.image() + i * width_ + layout.tap(ty, tx) + begin +
                       term.a * a_term);
      runs.b.push_back((run * run_length(block) + begin) * gemm_.nr + term.b * b_term);
    }
  }
  return runs;
}

template <class T, class Operand>
void TransposedWgrad<T, Operand>::multiply(const Cell& cell, const Block& block, const Operand* a,
                                           const Operand* b, bool first, const Sums& sums,
                                           Prefetch& prefetch) const {
  const int64_t length = run_length(block), stride = row_items(block);
  const int64_t panel_items = run_count(block) * length * gemm_.nr;
  std::vector<Runs> tap_runs;
  size_t most = 1;
  for (int64_t tap = 0; tap < taps(); ++tap) {
    tap_runs.push_back(runs(cell, block, tap));
    most = std::max(most, tap_runs.back().a.size());
  }
  std::vector<const void*> run_a(most), run_b(most);
  const std::vector<Chunk> chunks = this->chunks(block);
  for (int64_t row = 0; row < cell.rows.size; row += cells_.row_unit) {
    for (const Chunk& chunk : chunks) {
      const bool starts = first && &chunk == chunks.data();
      for (int64_t column = 0; column < cell.columns.size; column += gemm_.nr) {
        Acc* const tile_sums =
            sums.at + row / cells_.row_unit * sums.tile + column / gemm_.nr * sums.panel;
        for (int64_t tap = 0; tap < taps(); ++tap) {
          const Runs& runs = tap_runs[static_cast<size_t>(tap)];
          const Operand* tile_a = a + row * stride + chunk.begin;
          const Operand* panel_b = b + column / gemm_.nr * panel_items + chunk.begin * gemm_.nr;
          const auto all = static_cast<int64_t>(runs.a.size());
          const int64_t products = linear_ ? all / run_count(block) : all;
          const int64_t from = linear_ ? chunk.run * products : 0;
          const int64_t batch = linear_ ? chunk.runs * products : all;
          for (int64_t t = 0; t < batch; ++t) {
            run_a[static_cast<size_t>(t)] = tile_a + runs.a[static_cast<size_t>(from + t)];
            run_b[static_cast<size_t>(t)] = panel_b + runs.b[static_cast<size_t>(from + t)];
          }
          const int64_t k = linear_ ? chunk.k : runs.k;
          const Prefetch::Lines lines = prefetch.next(batch * ceil_div(k, kPrefetchStep), nullptr);
          const GemmTile tile{.m = std::min(cells_.row_unit, cell.rows.size - row),
                              .n = std::min<int64_t>(gemm_.nr, cell.columns.size - column),
                              .k = k,
                              .batch = batch,
                              .a = run_a.data(),
                              .lda = stride,
                              .b = run_b.data(),
                              .prefetch = lines.at,
                              .prefetch_step = lines.step,
                              .c = tile_sums + tap * sums.tap,
                              .ldc = sums.row,
                              .accumulate = !starts};
          if (tile.batch > 0) {
            gemm_.run(tile);
          } else if (starts) {
            for (int64_t i = 0; i < tile.m; ++i)
              std::fill_n(static_cast<Acc*>(tile.c) + i * sums.row, tile.n, Acc{});
          }
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
                plan = Outer::takes(*choice.gemm) ? make_conv_plan<WgradPlan<Outer>>(choice)
                                                  : make_conv_plan<WgradPlan<Transposed>>(choice);
              });
  return plan;
}

}  // namespace quern::kernels
