// The gradient of 3×3 filters by Winograd: F(2×2, 3×3) transposed. Where (winograd_kernel.h)
//
//     y = Aᵀ·[(G·g·Gᵀ) ∘ (Bᵀ·d·B)]·A,
//
//     dg = Σ over tiles Gᵀ·[(A·dy·Aᵀ) ∘ (Bᵀ·d·B)]·G
//
// takes 16 multiplications for 2×2 pixels of dy where the definition takes 36. Each point is a sum
// of outer products over tiles:
//
//   for each cell (range of blocks of tiles, of output channels, of input channels), in parallel
//     for each block
//       copy x and dy to zero-padded scratch, a few rows at a time; transform them:
//         V[point][panel of nr input channels][tile][nr]
//         D[point][sliver of a micro-kernel's output channels][tile][mr]
//       for each point, panel and sliver
//         M[point][panel][output channel][nr] += Dᵀ[point][sliver] · V[point][panel]
//     taps = Gᵀ·M·G, the cell's [output channel][tap][input channel]
//   dw = the cells' taps, summed over the ranges of blocks in their order
//
// A point's V, D and M aim at L2, those of all points at L3.
#include <algorithm>
#include <vector>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/wgrad/cells.h"
#include "quern/ops/kernels/conv/wgrad/wgrad.h"
#include "quern/ops/kernels/conv/winograd/winograd.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kLine = 16;  // floats of a cache line
constexpr int64_t kTaps = 9;
constexpr int64_t kPoints = 16;

class WinogradWgrad : public WgradOperands {
 public:
  using Acc = float;

  explicit WinogradWgrad(const ConvChoice& choice)
      : WgradOperands(choice),
        kernel_(select_winograd_transforms(2)),
        conv_(p_, ConvPass::forward, 2),
        dy_y_(forward_axis(p_.oh, 2 * conv_.tile_rows(), 1, 1, 0, 1)),
        dy_x_(forward_axis(p_.ow, 2 * conv_.tile_columns(), 1, 1, 0, 1)),
        mr_(even_piece(p_.oc, gemm_.mr)),
        nr_(gemm_.nr),
        d_pitch_(round_up(mr_, 8)),
        v_pitch_(round_up(nr_, kLine)) {
    choose_split();
  }
  using Cell = WgradCell;  // rows are output channels, columns input channels
  void run(float* dw) const { cells_.run(*this, products(), tap_items(), mr_, dw); }

  // As WgradCells::run() calls them. Sums are taps, [output channel][tap][input channel].
  void run_cell(int64_t index, float* taps) const { run_cell(index, taps, nullptr); }
  void run_whole(int64_t index, float* dw) const { run_cell(index, nullptr, dw); }
  void merge(const Cell& cell, int64_t row, int64_t rows, const float* taps, float* dw) const;

 private:
  void choose_split();
  void run_cell(int64_t index, float* taps, float* dw) const;
  template <class Body>
  void each_strip(const Block& block, int64_t row_items, Body body) const;
  void transform_x(const Cell& cell, const Block& block, float* v) const;
  void transform_dy(const Cell& cell, const Block& block, float* d) const;
  Prefetch prefetch_of(const Cell& cell, const Block& block) const;
  void multiply(const Cell& cell, const Block& block, const float* d, const float* v, float* m,
                bool first, Prefetch& prefetch) const;
  void transform_m(const Cell& cell, const float* m, int64_t row, int64_t rows, float* taps) const;
  void write(const Cell& cell, int64_t row, int64_t rows, const float* taps, float* dw) const;

  const float* x() const { return static_cast<const float*>(x_); }
  const float* dy() const { return static_cast<const float*>(dy_); }
  int64_t all_tiles() const { return conv_.images * conv_.tile_rows() * conv_.tile_columns(); }
  int64_t products() const { return all_tiles() * kPoints * p_.ic * p_.oc; }
  int64_t tap_items() const { return cells_.max_rows() * kTaps * cells_.max_columns(); }
  int64_t slivers(const Cell& cell) const { return ceil_div(cell.rows.size, mr_); }
  int64_t panels(const Cell& cell) const { return ceil_div(cell.columns.size, nr_); }
  int64_t tiles(const Block& block) const {
    return block.images * block.rows * conv_.tile_columns();
  }
  // From a point's matrix to the next: a cache line more, so that the 16 lie in different sets.
  int64_t d_point(const Cell& cell, const Block& block) const {
    return slivers(cell) * tiles(block) * d_pitch_ + kLine;
  }
  int64_t v_point(const Cell& cell, const Block& block) const {
    return panels(cell) * tiles(block) * v_pitch_ + kLine;
  }
  int64_t m_point(const Cell& cell) const {
    return panels(cell) * cell.rows.size * v_pitch_ + kLine;
  }

  const WinogradTransforms& kernel_;
  const WinogradConv conv_;
  const Axis dy_y_, dy_x_;           // of whole tiles
  const int64_t mr_, nr_;            // of a tile of the micro-kernel
  const int64_t d_pitch_, v_pitch_;  // floats of a tile in D and in V
  WgradCells cells_;                 // of whole slivers and panels, and rows of tiles
};

/// M and taps of a range of tiles are written and read.
void WinogradWgrad::choose_split() {
  const double points = static_cast<double>(all_tiles() * kPoints);
  const double v = points * static_cast<double>(p_.ic), d = points * static_cast<double>(p_.oc);
  const double filters = static_cast<double>(p_.ic * p_.oc);
  cells_ = {.groups = 1, .rows = p_.oc, .columns = p_.ic, .row_unit = mr_, .column_unit = nr_};
  cells_.split(
      products(), ceil_div(p_.oc, mr_), p_.n * conv_.tile_rows(),
      [&](int64_t rows, int64_t columns, int64_t parts) {
        const double m = filters / static_cast<double>(rows * columns) * kFloat;  // of a point
        return v * static_cast<double>(rows) + d * static_cast<double>(columns) +
               filters * static_cast<double>(parts * (kPoints + (parts > 1 ? 2 * kTaps : 0))) +
               (m > static_cast<double>(cache::winograd_sums()) ? 1000 * m : 0);
      });
  const auto bytes = [&](int64_t rows) {
    return rows * conv_.tile_columns() * kPoints *
           (cells_.max_rows() / mr_ * d_pitch_ + cells_.max_columns() / nr_ * v_pitch_) * kFloat;
  };
  cells_.block(BlockGrid::within(p_.n, conv_.tile_rows(), cache::winograd_outer_block(), bytes), 1);
}

/// To `taps`, or to dw if they are the only ones.
void WinogradWgrad::run_cell(int64_t index, float* taps, float* dw) const {
  const Cell cell = cells_[index];
  const Block largest = cells_.grid[0];
  const Workspace d(kPoints * d_point(cell, largest) * kFloat);
  const Workspace v(kPoints * v_point(cell, largest) * kFloat);
  const Workspace m(kPoints * m_point(cell) * kFloat);
  for (int64_t i = 0; i < cell.blocks.size; ++i) {
    const Block block = cells_.grid[cell.blocks.begin + i];
    transform_x(cell, block, v.as<float>());
    transform_dy(cell, block, d.as<float>());
    Prefetch prefetch;
    cells_.next(index, cell, i,
                [&](const Cell& c, const Block& b) { prefetch = prefetch_of(c, b); });
    multiply(cell, block, d.as<float>(), v.as<float>(), m.as<float>(), i == 0, prefetch);
  }
  const PartSpan part("transform_sums");
  if (taps) return transform_m(cell, m.as<float>(), 0, cell.rows.size, taps);
  const Workspace some(mr_ * kTaps * cells_.max_columns() * kFloat);
  for (int64_t row = 0; row < cell.rows.size; row += mr_) {
    const int64_t rows = std::min(mr_, cell.rows.size - row);
    transform_m(cell, m.as<float>(), row, rows, some.as<float>());
    write(cell, row, rows, some.as<float>(), dw);
  }
}

/// body(pixels, the first one's tile) of each strip of rows that are copied at once, to stay near.
template <class Body>
void WinogradWgrad::each_strip(const Block& block, int64_t row_items, Body body) const {
  const int64_t fit = std::max<int64_t>(1, cache::winograd_strip() / (2 * row_items * kFloat));
  const int64_t step = even_piece(block.rows, fit);
  for (int64_t image = 0; image < block.images; ++image)
    for (int64_t row = 0; row < block.rows; row += step)
      body(Block{.image = block.image + image,
                 .images = 1,
                 .row = 2 * (block.row + row),
                 .rows = 2 * std::min(step, block.rows - row)},
           (image * block.rows + row) * conv_.tile_columns());
}

/// Vectors may run on into the next pixel's channels, and end in rows and columns of M that are not
/// used.
void WinogradWgrad::transform_x(const Cell& cell, const Block& block, float* v) const {
  const PartSpan part("transform_source");
  const int64_t pixel = round_up(cell.columns.size, kLine);
  const int64_t row = Scratch(conv_.y, conv_.x, 2).width * pixel;
  const Workspace scratch(((2 * block.rows + 2) * row + v_pitch_) * kFloat);
  each_strip(block, row, [&](const Block& strip, int64_t tile) {
    copy_block({.item = kFloat,
                .strides = x_strides_,
                .channels = cell.columns.size,
                .position_stride = pixel,
                .channel_stride = 1,
                .map = from_channel<float>(map_, cell.columns.begin)},
               conv_.y, conv_.x, strip, x() + cell.columns.begin * x_strides_.c,
               scratch.as<float>());
    for (int64_t i = 0; i < strip.rows; i += 2, tile += conv_.tile_columns())
      for (int64_t panel = 0; panel < panels(cell); ++panel)
        kernel_.source({.from = scratch.as<float>() + i * row + panel * nr_,
                        .to = v + (panel * tiles(block) + tile) * v_pitch_,
                        .row = row,
                        .pixel = pixel,
                        .point = v_point(cell, block),
                        .tile = v_pitch_,
                        .tiles = conv_.tile_columns(),
                        .channels = v_pitch_});
  });
}

void WinogradWgrad::transform_dy(const Cell& cell, const Block& block, float* d) const {
  const PartSpan part("transform_source");
  const int64_t pixel = round_up(cell.rows.size, kLine);
  const int64_t row = 2 * conv_.tile_columns() * pixel;
  const Workspace scratch((2 * block.rows * row + d_pitch_) * kFloat);
  each_strip(block, row, [&](const Block& strip, int64_t tile) {
    copy_block({.item = kFloat,
                .strides = dy_strides_,
                .channels = cell.rows.size,
                .position_stride = pixel,
                .channel_stride = 1},
               dy_y_, dy_x_, strip, dy() + cell.rows.begin * dy_strides_.c, scratch.as<float>());
    for (int64_t i = 0; i < strip.rows; i += 2, tile += conv_.tile_columns())
      for (int64_t sliver = 0; sliver < slivers(cell); ++sliver)
        kernel_.output_gradient({.from = scratch.as<float>() + i * row + sliver * mr_,
                                 .to = d + (sliver * tiles(block) + tile) * d_pitch_,
                                 .row = row,
                                 .pixel = pixel,
                                 .point = d_point(cell, block),
                                 .tile = d_pitch_,
                                 .tiles = conv_.tile_columns(),
                                 .channels = d_pitch_});
  });
}

Prefetch WinogradWgrad::prefetch_of(const Cell& cell, const Block& block) const {
  Prefetch prefetch;
  const auto add = [&](const float* base, const ImageStrides& strides, const Extent& channels,
                       int64_t begin, int64_t end) {
    prefetch.add(base, kFloat, strides, channels, {block.image, block.images, begin, end - begin});
  };
  const int64_t begin = 2 * block.row, end = begin + 2 * block.rows;
  add(x(), x_strides_, cell.columns, std::max<int64_t>(begin - p_.pad_h, 0),
      std::min(end + 2 - p_.pad_h, p_.ih));
  add(dy(), dy_strides_, cell.rows, begin, std::min(end, p_.oh));
  return prefetch;
}

void WinogradWgrad::multiply(const Cell& cell, const Block& block, const float* d, const float* v,
                             float* m, bool first, Prefetch& prefetch) const {
  const int64_t count = tiles(block);
  for (int64_t point = 0; point < kPoints; ++point) {
    for (int64_t panel = 0; panel < panels(cell); ++panel) {
      const void* b = v + point * v_point(cell, block) + panel * count * v_pitch_;
      for (int64_t row = 0; row < cell.rows.size; row += mr_) {
        const void* a = d + point * d_point(cell, block) + row / mr_ * count * d_pitch_;
        const Prefetch::Lines lines = prefetch.next(count, b);
        gemm_.run_outer({.m = std::min(mr_, cell.rows.size - row),
                         .n = std::min(nr_, cell.columns.size - panel * nr_),
                         .k = count,
                         .batch = 1,
                         .a = &a,
                         .lda = d_pitch_,
                         .b = &b,
                         .ldb = v_pitch_,
                         .prefetch = lines.at,
                         .prefetch_step = lines.step,
                         .c = m + point * m_point(cell) + (panel * cell.rows.size + row) * v_pitch_,
                         .ldc = v_pitch_,
                         .accumulate = !first});
      }
    }
  }
}

/// Some rows of M to taps.
void WinogradWgrad::transform_m(const Cell& cell, const float* m, int64_t row, int64_t rows,
                                float* taps) const {
  for (int64_t panel = 0; panel < panels(cell); ++panel)
    kernel_.weight_gradient({.from = m + (panel * cell.rows.size + row) * v_pitch_,
                             .to = taps + panel * nr_,
                             .filter = kTaps * cells_.max_columns(),
                             .tap = cells_.max_columns(),
                             .point = m_point(cell),
                             .row = v_pitch_,
                             .filters = rows,
                             .columns = nr_});
}

/// Taps of some rows to where dw has them: [output channel][input channel][tap].
void WinogradWgrad::write(const Cell& cell, int64_t row, int64_t rows, const float* taps,
                          float* dw) const {
  for (int64_t i = 0; i < rows; ++i)
    copy_matrix(kFloat, taps + i * kTaps * cells_.max_columns(), 1, cells_.max_columns(),
                dw + ((cell.rows.begin + row + i) * p_.ic + cell.columns.begin) * kTaps, kTaps,
                cell.columns.size, kTaps);
}

/// The same, of the sums over the ranges of blocks.
void WinogradWgrad::merge(const Cell& cell, int64_t row, int64_t rows, const float* taps,
                          float* dw) const {
  const int64_t items = kTaps * cells_.max_columns();
  std::vector<float> sums(static_cast<size_t>(items));
  for (int64_t i = row; i < row + rows; ++i) {
    cells_.add_ranges(taps + i * items, tap_items(), items, sums.data());
    write(cell, i, 1, sums.data(), dw);
  }
}

}  // namespace

std::unique_ptr<const ConvPlan> plan_winograd_wgrad(const ConvChoice& choice) {
  return make_conv_plan<WgradPlan<WinogradWgrad>>(choice);
}

}  // namespace quern::kernels
