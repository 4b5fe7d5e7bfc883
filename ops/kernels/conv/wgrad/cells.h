// How a gradient of the weight is cut into cells and put together: what its engines share. They
// differ in what they make of x and dy before they multiply (transposed, by columns, transformed),
// and what that costs.
//
//   dw[row][column] = Σ over pixels of A[pixel][row] · B[pixel][column], for each tap
//   cells are [group][range of blocks of pixels][range of rows][range of columns], a thread's each
//   dw = the sums of the ranges of pixels, merged in their order
#pragma once
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

/// What all engines know of a choice, and what they are told before they run.
struct WgradOperands {
  explicit WgradOperands(const ConvChoice& choice)
      : p_(linearised(choice.problem)),
        gemm_(*choice.gemm),
        bf16_terms_(choice.bf16_terms),
        terms_(term_copies(bf16_terms_)),
        icg_(p_.ic / p_.groups),
        ocg_(p_.oc / p_.groups),
        x_strides_(p_.format, p_.ic, p_.ih, p_.iw),
        dy_strides_(p_.format, p_.oc, p_.oh, p_.ow),
        y_axis_(forward_axis(p_.ih, p_.oh, p_.kh, p_.stride_h, p_.pad_h, p_.dilation_h)) {}
  /// What a block reads of some channels of x and of dy, of items of so many bytes.
  Prefetch prefetch_of(const Block& block, const Extent& of_x, const Extent& of_dy,
                       int64_t item) const;
  int64_t multiplications() const { return p_.n * p_.oh * p_.ow * icg_ * p_.oc * p_.kh * p_.kw; }

  const ConvProblem p_;
  const GemmKernel& gemm_;
  const int bf16_terms_;
  const int64_t terms_;      // copies of an operand
  const int64_t icg_, ocg_;  // channels of a group
  const ImageStrides x_strides_, dy_strides_;
  const Axis y_axis_;
  const void *x_ = nullptr, *dy_ = nullptr;
  ChannelMap map_ = {};
};

/// One piece of parallel work.
struct WgradCell {
  int64_t group;
  Extent blocks, rows, columns;
};

struct WgradCells {
  int64_t groups, rows, columns;  // rows and columns of a group
  int64_t row_unit, column_unit;  // a cell holds whole ones
  int64_t pixel_parts = 1, row_parts = 1, column_parts = 1;
  int64_t row_spread = 1, column_spread = 1;  // ranges of each of those, where threads are many
  BlockGrid grid = {};                        // of pixels

  int64_t channel_cells() const { return row_parts * column_parts; }
  int64_t count() const { return groups * pixel_parts * channel_cells(); }
  int64_t max_rows() const { return most(rows, row_unit, row_parts); }
  int64_t max_columns() const { return most(columns, column_unit, column_parts); }
  WgradCell operator[](int64_t index) const {
    const int64_t part = index / channel_cells(), channels = index % channel_cells();
    return {.group = part / pixel_parts,
            .blocks = piece(grid.count(), pixel_parts, part % pixel_parts),
            .rows = units(rows, row_unit, row_parts, channels / column_parts),
            .columns = units(columns, column_unit, column_parts, channels % column_parts)};
  }

  /// The ranges that cost the least, of powers of two of them: cost(row parts, column parts, pixel
  /// parts), where as many ranges of pixels as make one cell for each of eight threads, if there
  /// are multiplications enough, at most `most_pixel_parts`, are taken. Every range of columns
  /// makes A again, every range of rows B; partial sums are written and read.
  template <class Cost>
  void split(int64_t multiplications, int64_t most_row_parts, int64_t most_pixel_parts, Cost cost) {
    const int64_t wanted = std::min<int64_t>(wanted_cells(multiplications), 8);
    double least = 0;
    for (int64_t r = 1; r <= most_row_parts; r *= 2) {
      for (int64_t c = 1; c <= ceil_div(columns, column_unit); c *= 2) {
        const int64_t p = std::min(most_pixel_parts, ceil_div(wanted, groups * r * c));
        const double now = cost(r, c, p);
        if (least > 0 && now >= least) continue;
        least = now;
        row_parts = r, column_parts = c, pixel_parts = p;
      }
    }
    spread(multiplications, most_row_parts, cost);
  }
  /// Blocks of at least `least_rows` rows, small enough for the ranges of pixels.
  void block(const BlockGrid& blocks, int64_t least_rows) {
    grid = blocks;
    while (grid.count() < pixel_parts && grid.block_images > 1)
      grid.block_images = ceil_div(grid.block_images, 2);
    while (grid.count() < pixel_parts && grid.block_rows > least_rows)
      grid.block_rows = ceil_div(grid.block_rows, 2);
    pixel_parts = std::min(pixel_parts, grid.count());
    row_parts *= row_spread, column_parts *= column_spread;
  }

  /// f(cell, block) of what follows a cell's block i, mostly on the same thread: its next one, or
  /// the first of the next cell.
  template <class F>
  void next(int64_t index, const WgradCell& cell, int64_t i, F f) const {
    if (i + 1 < cell.blocks.size) return f(cell, grid[cell.blocks.begin + i + 1]);
    if (index + 1 == count()) return;
    const WgradCell after = (*this)[index + 1];
    f(after, grid[after.blocks.begin]);
  }

  /// Runs them: engine.run_cell(index, sums) to sums of its own, [sums_items] each, then
  /// engine.merge(cell, row, rows, sums, dw) some rows at a time. engine.run_whole(index, dw) does
  /// both where a cell has all pixels, while its sums are in L2.
  template <class Acc, class Engine>
  void run(const Engine& engine, int64_t multiplications, int64_t sums_items, int64_t merged_rows,
           Acc* dw) const {
    if (pixel_parts == 1)
      return parallel_pieces(count(), multiplications / count(),
                             [&](int64_t i) { engine.run_whole(i, dw); });
    const Workspace all(count() * sums_items * static_cast<int64_t>(sizeof(Acc)));
    Acc* const sums = all.as<Acc>();
    parallel_pieces(count(), multiplications / count(),
                    [&](int64_t i) { engine.run_cell(i, sums + i * sums_items); });
    const int64_t pieces = ceil_div(max_rows(), merged_rows);
    const auto merge = [&](int64_t i) {
      const PartSpan part("merge");
      const int64_t group = i / pieces / channel_cells();
      const int64_t first = group * pixel_parts * channel_cells() + i / pieces % channel_cells();
      const WgradCell cell = (*this)[first];
      const int64_t row = i % pieces * merged_rows;
      if (row < cell.rows.size)
        engine.merge(cell, row, std::min(merged_rows, cell.rows.size - row),
                     sums + first * sums_items, dw);
    };
    parallel_pieces(groups * channel_cells() * pieces, pixel_parts * sums_items / pieces, merge);
  }

  /// to[j] = the sums of all ranges of pixels from `from` on, in their order; n of them.
  template <class Acc>
  void add_ranges(const Acc* from, int64_t sums_items, int64_t n, Acc* to) const {
    const int64_t range = channel_cells() * sums_items;  // from one to the next
    if (pixel_parts == 1) std::copy_n(from, n, to);
    else
      for (int64_t j = 0; j < n; ++j) to[j] = from[j] + from[range + j];
    for (int64_t part = 2; part < pixel_parts; ++part)
      for (int64_t j = 0; j < n; ++j) to[j] += from[part * range + j];
  }

 private:
  /// Cuts ranges further where there are more threads than cells. What adds up to an item of dw
  /// stays the same, pixels and blocks as above: only this may depend on the number of threads.
  template <class Cost>
  void spread(int64_t multiplications, int64_t most_row_parts, Cost cost) {
    row_spread = column_spread = 1;
    const int64_t worth = std::min<int64_t>(num_threads(), multiplications / kWorthACell);
    for (int64_t cells = count(); cells < worth; cells *= 2) {
      const int64_t r = row_parts * row_spread, c = column_parts * column_spread;
      const bool by_rows = 2 * r <= most_row_parts;
      const bool by_columns = 2 * c <= ceil_div(columns, column_unit);
      if (!by_rows && !by_columns) return;
      const bool rows_cost_less =
          by_rows && (!by_columns || cost(2 * r, c, pixel_parts) <= cost(r, 2 * c, pixel_parts));
      (rows_cost_less ? row_spread : column_spread) *= 2;
    }
  }
  static int64_t most(int64_t n, int64_t unit, int64_t parts) {
    return ceil_div(ceil_div(n, unit), parts) * unit;
  }
  static Extent units(int64_t n, int64_t unit, int64_t parts, int64_t i) {
    const Extent e = piece(ceil_div(n, unit), parts, i);
    return {e.begin * unit, std::min(e.size * unit, n - e.begin * unit)};
  }
};

}  // namespace quern::kernels
