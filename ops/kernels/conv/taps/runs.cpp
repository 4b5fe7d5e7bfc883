// The runs of output pixels that tiles go along: along rows, or, where these are short, along the
// images.
#include <algorithm>
#include <functional>

#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/work.h"

namespace quern::kernels {
namespace {

/// Of a run's tiles. A tile reads B as well, which takes as long as two more rows of it.
int64_t time_of_run(const GemmKernel& gemm, int64_t pixels, const Axis::Range& columns) {
  return (pixels + 2 * ceil_div(pixels, gemm.mr)) * (columns.end - columns.begin);
}

/// The outputs of a block that have the same phases.
class PhaseOutputs {
 public:
  PhaseOutputs(const TapPlan& plan, const Block& block, const Phase& y, const Phase& x)
      : plan_(plan),
        block_(block),
        y_(y),
        x_(x),
        a_image_(plan.a_image(block.rows)),
        a_row_(plan.in_place ? plan.source_strides.y * plan.conv.y.stride()
                             : Scratch(plan.conv.y, plan.conv.x, block.rows).width *
                                   plan.conv.y.stretch * plan.pitch) {}

  int64_t rows() const { return std::min(block_.rows, y_.count - block_.row); }
  /// Rows of one output each that are equally spaced, all with the same taps.
  bool rows_are_pixels() const {
    const TapConv& conv = plan_.conv;
    return conv.x.output == 1 && y_.taps == 1 && conv.y.reads_no_padding() &&
           a_row_ == plan_.a_pixel &&
           plan_.out_strides.y * conv.y.output_step == plan_.output_pixel;
  }
  /// From an output on.
  Run run(int64_t image, int64_t row, const RowPiece& piece) const {
    const TapConv& conv = plan_.conv;
    const ImageStrides& out = plan_.out_strides;
    const int64_t live = piece.columns.end - piece.columns.begin;
    return {.a = image * a_image_ + row * a_row_ + piece.begin * plan_.a_column(),
            .output = (block_.image + image) * out.n +
                      (y_.start + (block_.row + row) * conv.y.output_step) * out.y +
                      (x_.start + piece.begin * conv.x.output_step) * out.x,
            .length = piece.length,
            .rows = conv.y.live_taps(y_, block_.row + row),
            .columns = conv.kw_in_k ? Axis::Range{0, live > 0 ? 1 : 0} : piece.columns,
            .k = conv.kw_in_k && live < x_.taps ? Extent{piece.columns.begin * conv.source_channels,
                                                         live * conv.source_channels}
                                                : Extent{0, plan_.k}};
  }

 private:
  const TapPlan& plan_;
  const Block& block_;
  const Phase &y_, &x_;
  const int64_t a_image_, a_row_;
};

}  // namespace

/// Where taps reach far into the padding, the outputs for which they do are runs of their own,
/// which leave them out. So are all that read padding where that costs less than the copy that it
/// saves: tiles can read the source where it lies then.
std::vector<RowPiece> TapPlan::cut_row() const {
  if (strips || conv.x.phases() != 1) return {};
  const bool saves_copy = !problem.maps && reads_cut_rows(conv.source_gap);
  if (conv.kw_in_k && !saves_copy) return {};
  const Phase phase = conv.x.phase(0);
  std::vector<RowPiece> pieces;
  for (int64_t i = 0; i < phase.count; ++i) {
    const Axis::Range columns = conv.x.live_taps(phase, i);
    if (pieces.empty() || pieces.back().columns != columns) pieces.push_back({i, 0, columns});
    ++pieces.back().length;
  }
  if (pieces.size() == 1) return {};  // all taps reach the source everywhere
  const int64_t whole = time_of_run(*gemm, phase.count, {0, phase.taps});
  int64_t cut = 0;
  for (const RowPiece& piece : pieces) cut += time_of_run(*gemm, piece.length, piece.columns);
  // An item is copied in a sixth of the time that a row of a tile takes for one of k.
  const bool pays =
      saves_copy && 6 * (cut - whole) * panels * conv.y.kernel < conv.y.stride() * conv.x.source;
  if (!pays && (conv.kw_in_k || 10 * cut > 9 * whole)) pieces.clear();
  // The longest first: of its first tile is the pivot that moments are taken about.
  std::ranges::stable_sort(pieces, std::ranges::greater{}, &RowPiece::length);
  return pieces;
}

/// Runs along the images, each at one output, fill the tiles that short rows do not, and multiply
/// no padding.
bool TapPlan::images_are_longer() const {
  if (conv.kw_in_k || out_strides.c != 1) return false;
  int64_t row = 0, image = 0;
  for (int64_t i = 0; i < conv.x.phases(); ++i) {
    const Phase phase = conv.x.phase(i);
    for (const RowPiece& piece : row_pieces) row += time_of_run(*gemm, piece.length, piece.columns);
    if (row_pieces.empty()) row += time_of_run(*gemm, phase.count, {0, phase.taps});
    for (int64_t j = 0; j < phase.count; ++j)
      image += time_of_run(*gemm, conv.images, conv.x.live_taps(phase, j));
  }
  return 20 * image < 19 * conv.images * row;
}

int64_t TapPlan::max_runs() const {
  const int64_t rows = phases() * grid.block_rows;
  if (by_image) return rows * conv.x.longest_phase();
  return rows * grid.block_images * std::max<int64_t>(1, std::ssize(row_pieces));
}

Run* TapPlan::runs_along_images(const Block& block, const Phase& y, const Phase& x,
                                Run* end) const {
  const PhaseOutputs outputs(*this, block, y, x);
  for (int64_t row = 0; row < outputs.rows(); ++row)
    for (int64_t i = 0; i < x.count; ++i) {
      *end = outputs.run(0, row, {i, 1, conv.x.live_taps(x, i)});
      end++->length = block.images;
    }
  return end;
}

Run* TapPlan::runs_along_rows(const Block& block, const Phase& y, const Phase& x, Run* end) const {
  const PhaseOutputs outputs(*this, block, y, x);
  const RowPiece whole{0, x.count, {0, x.taps}};
  const std::span<const RowPiece> pieces =
      row_pieces.empty() ? std::span(&whole, 1) : std::span(row_pieces);
  Run* last = nullptr;
  const auto add = [&](const Run& run) {
    // Rows that follow each other without a gap, in A and in the output, are one run.
    if (last && run.rows == last->rows && run.columns == last->columns && run.k == last->k &&
        run.a == last->a + last->length * a_pixel &&
        run.output == last->output + last->length * output_pixel)
      last->length += run.length;
    else *(last = end++) = run;
  };
  for (int64_t n = 0; n < block.images; ++n) {
    if (outputs.rows_are_pixels()) {
      add(outputs.run(n, 0, {0, outputs.rows(), pieces.front().columns}));
      continue;
    }
    for (int64_t row = 0; row < outputs.rows(); ++row)
      for (const RowPiece& piece : pieces) add(outputs.run(n, row, piece));
  }
  return end;
}

TapItems* TapPlan::taps_of(const Block& block, const Phase& y, const Phase& x,
                           TapItems* end) const {
  const int64_t a_term = term_items(block), b_term = panel_items() / terms;
  const int64_t columns = conv.kw_in_k ? 1 : x.taps;
  for (int64_t row = 0; row < y.taps; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      const Tap ty = conv.y.tap(y, row), tx = conv.x.tap(x, column);
      const int64_t a = tap_items(block, ty, tx);
      const int64_t b = (ty.kernel * conv.kernel_columns + tx.kernel) * k * gemm->nr;
      for (int64_t t = 0; t < term_products(bf16_terms); ++t)
        *end++ = {a + kTermProducts[t].a * a_term, b + kTermProducts[t].b * b_term};
    }
  return end;
}

WorkMemory::WorkMemory(const TapPlan& plan)
    : PerThread(plan.phases(), plan.tap_products(), plan.max_runs()) {}

std::span<const PhaseWork> TapPlan::work_of(const Block& block, const WorkMemory& memory) const {
  auto [work, taps, runs] = memory.get();
  PhaseWork* phase = work;
  for (int64_t iy = 0; iy < conv.y.phases(); ++iy)
    for (int64_t ix = 0; ix < conv.x.phases(); ++ix) {
      const Phase y = conv.y.phase(iy), x = conv.x.phase(ix);
      TapItems* const last_tap = taps_of(block, y, x, taps);
      Run* const last_run =
          by_image ? runs_along_images(block, y, x, runs) : runs_along_rows(block, y, x, runs);
      *phase++ = {.taps = {taps, last_tap},
                  .row_taps = y.taps == 0 ? 0 : (last_tap - taps) / y.taps,
                  .runs = {runs, last_run}};
      taps = last_tap, runs = last_run;
    }
  return {work, phase};
}

}  // namespace quern::kernels
