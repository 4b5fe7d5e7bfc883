// The engine of forward and dgrad.
//
//   for each cell (block of images and rows, range of panels), in parallel
//     for each group
//       copy the block of the source to scratch         aims at half of L2; before, if cells share it
//       for each panel of nr output channels
//         for each phase of y, of x
//           for each block of source channels           B of all taps aims at a quarter of L2
//             for each run of output pixels, for each tile of mr
//               C[mr × nr] += Σ taps A[mr × channels] · B[channels × nr]
//               after the last block: what is fused, rounding, store      brgemm_epilogue.h
//
// A is the source itself where it needs no padding and channels are innermost.
#include <algorithm>
#include <cstddef>
#include <span>

#include "quern/ops/kernels/conv/brgemm.h"
#include "quern/ops/kernels/gemm/gemm_registry.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

/// Output pixels that tiles run along: equally spaced in A and in the output, and reached by the
/// same rows of taps.
struct Run {
  int64_t a, output;  // of the first pixel
  int64_t length;
  Axis::Range rows;  // of taps, padding left out
};

/// What a cell computes of one phase of y and one of x.
struct PhaseWork {
  Phase y, x;
  std::span<const Run> runs;
};

/// T is what source and output hold, Operand what is multiplied: T, or terms of bf16.
template <class T, class Operand>
class TapEngine {
 public:
  using Acc = Accumulator<T>;
  static constexpr int64_t kItem = sizeof(Operand);

  TapEngine(const ConvPlan& plan, const TapConv& conv, const T* source, const Operand* packed,
            const SourceMap& map, const EpilogueFusion& epilogue, T* output);
  void run() {
    if (shared_items_ > 0) copy_shared();
    parallel_for(cells_.grid.count() * cells_.parts,
                 [&](int64_t cell) { run_cell(cell / cells_.parts, cell % cells_.parts); });
    output_.merge([&](int64_t block) { return pixels_of(cells_.grid[block]); });
  }

 private:
  /// nr output channels of a group.
  struct Panel {
    int64_t first, n;     // in the output
    const Operand* b;     // [term][tap][k/kr][nr][kr]
    const Operand* next;  // what is multiplied after it; null if nothing is
  };
  /// Offsets of a product's A and B.
  struct TapItems {
    int64_t a, b;
  };
  struct Cells {
    BlockGrid grid;
    int64_t parts;  // of the panels
  };

  bool reads_in_place() const;
  const Operand* source_in_place(const Block& block, int64_t group) const {
    if constexpr (std::is_same_v<T, Operand>)
      return source_ + group * conv_.source_channels + block.image * source_strides_.n +
             block.row * conv_.y.stride() * source_strides_.y;
    else return nullptr;
  }
  int64_t pass_of_k() const;
  Cells cut() const;
  int64_t scratch_items(const Block& block) const { return terms_ * term_items(block); }
  int64_t term_items(const Block& block) const;
  int64_t shared_items() const;
  void copy_source(const Block& block, int64_t group, Extent channels, Operand* to) const;
  void copy_shared() const;
  void run_cell(int64_t block, int64_t part) const;
  std::span<const PhaseWork> work_of(const Block& block) const;
  int64_t pixels_of(const Block& block) const;
  int64_t tap_items(const Block& block, const Tap& y, const Tap& x) const;
  void run_panel(const Block& block, const PhaseWork& work, const Panel& panel, const Operand* a,
                 PanelSums<Acc>& sums) const;
  int64_t kept_pixels() const;
  int64_t max_taps() const;
  int64_t panel_items() const { return terms_ * conv_.kernel_taps() * k_ * gemm_.nr; }

  const TapConv& conv_;
  const GemmKernel& gemm_;
  const int bf16_terms_;
  const int64_t terms_;  // copies of an operand
  const T* source_;
  const Operand* packed_;
  const SourceMap map_;
  T* to_;

  int64_t source_total_, output_total_;  // channels of all groups
  ImageStrides source_strides_, out_strides_;
  int64_t k_;                       // of a product
  bool in_place_;                   // A is the source
  int64_t pitch_;                   // items between positions of A
  int64_t a_pixel_, output_pixel_;  // items between neighbouring outputs of a run
  int64_t panels_;                  // of a group's output channels
  int64_t k_block_;                 // of one pass over a product
  Cells cells_;
  int64_t shared_items_;  // of a block and group, if several cells read the same scratch
  Workspace shared_;      // [block][group]
  TileOutput<T> output_;
  bool direct_;  // C is the output

  // What cells work with.
  PerThread<Operand> scratch_;  // the source; empty if cells share it or read it in place
  PerThread<Acc> kept_;  // sums [tile][mr][nr] of a panel; of one tile if each is finished at once
  PerThread<T> finishing_;  // of the output
  PerThread<PhaseWork> work_;
  PerThread<Run> runs_;  // of all phases
  PerThread<TapItems> taps_;
  PerThread<const void*> tap_a_, tap_b_;
};

template <class T, class Operand>
TapEngine<T, Operand>::TapEngine(const ConvPlan& plan, const TapConv& conv, const T* source,
                                 const Operand* packed, const SourceMap& map,
                                 const EpilogueFusion& epilogue, T* output)
    : conv_(conv),
      gemm_(*plan.gemm),
      bf16_terms_(plan.bf16_terms),
      terms_(term_copies(bf16_terms_)),
      source_(source),
      packed_(packed),
      map_(map),
      to_(output),
      source_total_(conv.groups * conv.source_channels),
      output_total_(conv.groups * conv.output_channels),
      source_strides_(conv.format, source_total_, conv.y.source, conv.x.source),
      out_strides_(conv.format, output_total_, conv.y.output, conv.x.output),
      k_(padded_k(gemm_, conv.k())),
      in_place_(reads_in_place()),
      pitch_(in_place_     ? source_total_
             : conv.folded ? conv.source_channels
                           : without_collisions(gemm_, k_)),
      a_pixel_(in_place_ ? source_strides_.x * conv.x.stride() : conv.x.stretch * pitch_),
      output_pixel_(out_strides_.x * conv.x.output_step),
      panels_(panel_count(gemm_, conv.output_channels)),
      k_block_(pass_of_k()),
      cells_(cut()),
      shared_items_(shared_items()),
      shared_(cells_.grid.count() * conv.groups * shared_items_ * kItem),
      output_(epilogue, gemm_, out_strides_, output_pixel_, output_total_, cells_.grid.count(),
              output),
      direct_(output_.direct()),
      scratch_(in_place_ || shared_items_ > 0 ? 0 : scratch_items(cells_.grid[0])),
      kept_(direct_ ? 0 : kept_pixels() * gemm_.nr),
      finishing_(output_.scratch_items(gemm_.mr)),
      work_(conv.y.phases() * conv.x.phases()),
      runs_(conv.y.phases() * conv.x.phases() * cells_.grid.block_images * cells_.grid.block_rows),
      taps_(max_taps() * term_products(bf16_terms_)),
      tap_a_(max_taps() * term_products(bf16_terms_)),
      tap_b_(max_taps() * term_products(bf16_terms_)) {}

/// Whose sums are kept at a time, in whole tiles.
template <class T, class Operand>
int64_t TapEngine<T, Operand>::kept_pixels() const {
  if (k_block_ == k_) return gemm_.mr;
  return cells_.grid.block_images * cells_.grid.block_rows *
         round_up(conv_.x.longest_phase(), gemm_.mr);
}

template <class T, class Operand>
bool TapEngine<T, Operand>::reads_in_place() const {
  return std::is_same_v<T, Operand> && conv_.format == MemoryFormat::channels_last && !map_.scale &&
         !conv_.folded && k_ == conv_.k() && conv_.y.reads_no_padding() &&
         conv_.x.reads_no_padding() && !rows_collide(gemm_, source_strides_.x * conv_.x.stride());
}

template <class T, class Operand>
int64_t TapEngine<T, Operand>::pass_of_k() const {
  const int64_t fit = cache_sizes().l2 / 4 / (terms_ * max_taps() * gemm_.nr * kItem);
  const int64_t line = std::max<int64_t>(gemm_.k_multiple, 64 / kItem);
  return fit >= k_ ? k_ : std::min(k_, round_up(even_piece(k_, std::max(fit, line)), line));
}

template <class T, class Operand>
typename TapEngine<T, Operand>::Cells TapEngine<T, Operand>::cut() const {
  const Axis &y = conv_.y, &x = conv_.x;
  BlockGrid grid = BlockGrid::within(
      conv_.images, y.longest_phase(), cache_sizes().l2 / 2,
      [&](int64_t rows) { return terms_ * Scratch(y, x, rows).image() * pitch_ * kItem; });
  // Too few cells: first split the panels, then the block's images or rows.
  const int64_t wanted = wanted_cells(conv_.images * y.longest_phase() * x.longest_phase() * k_ *
                                      max_taps() * output_total_);
  const int64_t parts = std::clamp<int64_t>(ceil_div(wanted, grid.count()), 1, panels_);
  while (grid.count() * parts < wanted && grid.block_images > 1)
    grid.block_images = ceil_div(grid.block_images, 2);
  while (grid.count() * parts < wanted && grid.block_rows > 2)
    grid.block_rows = ceil_div(grid.block_rows, 2);
  return {grid, parts};
}

/// Products that make one tile, at most.
template <class T, class Operand>
int64_t TapEngine<T, Operand>::max_taps() const {
  const int64_t rows = conv_.y.most_taps(), columns = conv_.folded ? 1 : conv_.x.most_taps();
  return std::max<int64_t>(1, rows * columns);
}

/// From an output pixel's place in A to what a tap reads for it.
template <class T, class Operand>
int64_t TapEngine<T, Operand>::tap_items(const Block& block, const Tap& y, const Tap& x) const {
  if (in_place_) return y.offset * source_strides_.y + x.offset * source_strides_.x;
  return Scratch(conv_.y, conv_.x, block.rows).tap(y, x) * pitch_;
}

/// Outputs of a block, those of all phases.
template <class T, class Operand>
int64_t TapEngine<T, Operand>::pixels_of(const Block& block) const {
  int64_t rows = 0, columns = 0;
  for (int64_t i = 0; i < conv_.y.phases(); ++i)
    rows += std::clamp<int64_t>(conv_.y.phase(i).count - block.row, 0, block.rows);
  for (int64_t i = 0; i < conv_.x.phases(); ++i) columns += conv_.x.phase(i).count;
  return block.images * rows * columns;
}

/// The runs of every phase in a block.
template <class T, class Operand>
std::span<const PhaseWork> TapEngine<T, Operand>::work_of(const Block& block) const {
  const Axis &y = conv_.y, &x = conv_.x;
  const Scratch scratch(y, x, block.rows);
  const int64_t a_image = in_place_ ? source_strides_.n : scratch.image() * pitch_;
  const int64_t a_row =
      in_place_ ? source_strides_.y * y.stride() : scratch.width * y.stretch * pitch_;
  PhaseWork* phase = work_.get();
  Run* end = runs_.get();
  for (int64_t iy = 0; iy < y.phases(); ++iy) {
    for (int64_t ix = 0; ix < x.phases(); ++ix) {
      const Phase py = y.phase(iy), px = x.phase(ix);
      if (py.taps * px.taps == 0 && output_.adds_in_place()) continue;  // adds nothing
      Run* const begin = end;
      for (int64_t n = 0; n < block.images; ++n) {
        for (int64_t i = 0; i < std::min(block.rows, py.count - block.row); ++i) {
          const int64_t oy = py.start + (block.row + i) * y.output_step;
          const Run run{.a = n * a_image + i * a_row,
                        .output = (block.image + n) * out_strides_.n + oy * out_strides_.y +
                                  px.start * out_strides_.x,
                        .length = px.count,
                        .rows = y.live_taps(py, block.row + i)};
          // Rows that follow each other without a gap, in A and in the output, are one run.
          Run* last = end == begin ? nullptr : end - 1;
          if (last && run.rows == last->rows &&
              run.a == last->a + last->length * a_pixel_ &&
              run.output == last->output + last->length * output_pixel_)
            last->length += run.length;
          else *end++ = run;
        }
      }
      *phase++ = {.y = py, .x = px, .runs = {begin, end}};
    }
  }
  return {work_.get(), phase};
}

template <class T, class Operand>
int64_t TapEngine<T, Operand>::term_items(const Block& block) const {
  // A folded product reads on past the last position.
  return Scratch(conv_.y, conv_.x, block.rows).image() * block.images * pitch_ + k_;
}

/// Where few blocks leave each to many cells, all read one copy (ResNet-50's 2048->512 at 7×7 on one
/// image took 1.2 times as long when each of its 16 cells made its own); not where all copies together
/// are far from fitting in L2, in which a cell finds its own.
template <class T, class Operand>
int64_t TapEngine<T, Operand>::shared_items() const {
  if (in_place_ || cells_.parts == 1) return 0;
  const int64_t items = scratch_items(cells_.grid[0]), copies = cells_.grid.count() * conv_.groups;
  return copies * items * kItem <= 2 * cache_sizes().l2 ? items : 0;
}

/// Some channels of a group.
template <class T, class Operand>
void TapEngine<T, Operand>::copy_source(const Block& block, int64_t group, Extent channels,
                                        Operand* to) const {
  const int64_t items = term_items(block), whole = k_ == conv_.k() ? items - k_ : 0;
  // Channels up to k, and what follows the last position, stay zero.
  for (int64_t term = 0; channels.begin == 0 && term < terms_; ++term)
    std::fill(to + term * items + whole, to + (term + 1) * items, Operand{});
  const int64_t first = group * conv_.source_channels + channels.begin;
  copy_block({.item = sizeof(T),
              .strides = source_strides_,
              .channels = channels.size,
              .position_stride = pitch_,
              .channel_stride = 1,
              .map = from_channel<Acc>(map_, first),
              .bf16_terms = bf16_terms_,
              .term_stride = items},
             conv_.y, conv_.x, block, source_ + first * source_strides_.c, to + channels.begin);
}

template <class T, class Operand>
void TapEngine<T, Operand>::copy_shared() const {
  // Channels that pad k are zeroed together with the others.
  const int64_t slices = k_ == conv_.k() ? ceil_div(conv_.source_channels, 64) : 1;
  parallel_for(cells_.grid.count() * conv_.groups * slices, [&](int64_t i) {
    const int64_t scratch = i / slices;
    copy_source(cells_.grid[scratch / conv_.groups], scratch % conv_.groups,
                piece(conv_.source_channels, slices, i % slices),
                shared_.as<Operand>() + scratch * shared_items_);
  });
}

template <class T, class Operand>
void TapEngine<T, Operand>::run_cell(int64_t block_index, int64_t part) const {
  const Block block = cells_.grid[block_index];
  const std::span<const PhaseWork> work = work_of(block);
  for (int64_t group = 0; group < conv_.groups; ++group) {
    const Operand* a = scratch_.get();
    if (in_place_) a = source_in_place(block, group);
    else if (shared_items_ > 0)
      a = shared_.as<Operand>() + (block_index * conv_.groups + group) * shared_items_;
    else copy_source(block, group, {0, conv_.source_channels}, scratch_.get());
    for (int64_t p = panels_ * part / cells_.parts; p < panels_ * (part + 1) / cells_.parts; ++p) {
      const int64_t first = p * gemm_.nr;
      const Operand* b = packed_ + (group * panels_ + p) * panel_items();
      const Panel panel{.first = group * conv_.output_channels + first,
                        .n = std::min<int64_t>(gemm_.nr, conv_.output_channels - first),
                        .b = b,
                        // By this cell, or the next, which the same thread mostly runs.
                        .next = p + 1 < panels_ ? b + panel_items() : nullptr};
      PanelSums<Acc> panel_sums = output_.sums(block_index, panel.first, panel.n);
      for (const PhaseWork& phase : work) run_panel(block, phase, panel, a, panel_sums);
      panel_sums.flush();
    }
  }
}

/// One panel of output channels of one phase.
template <class T, class Operand>
void TapEngine<T, Operand>::run_panel(const Block& block, const PhaseWork& work, const Panel& panel,
                                      const Operand* a, PanelSums<Acc>& sums) const {
  TapItems* taps = taps_.get();  // row by row of taps
  const void **tap_a = tap_a_.get(), **tap_b = tap_b_.get();
  const int64_t a_term = term_items(block), b_term = panel_items() / terms_;
  const int64_t columns = conv_.folded ? 1 : work.x.taps;
  const int64_t products = term_products(bf16_terms_), row_taps = columns * products;
  for (int64_t row = 0; row < work.y.taps; ++row)
    for (int64_t t = 0; t < row_taps; ++t) {
      const Tap y = conv_.y.tap(work.y, row), x = conv_.x.tap(work.x, t / products);
      const TermProduct& term = kTermProducts[t % products];
      taps[row * row_taps + t] = {
          .a = tap_items(block, y, x) + term.a * a_term,
          .b = (y.kernel * conv_.kernel_columns + x.kernel) * k_ * gemm_.nr + term.b * b_term};
    }

  for (int64_t k0 = 0; k0 < k_; k0 += k_block_) {
    const bool first = k0 == 0, last = k0 + k_block_ >= k_;
    Acc* sum = kept_.get();
    // Weights that come from memory are asked for a panel ahead, by four tiles, which have time for a
    // quarter of it each (inference of ResNet-50 on one image in bf16, Zen 5: 2%).
    const Operand* ahead = panel.next ? panel.next + panel_items() * k0 / k_ : nullptr;
    int64_t quarters = ahead ? 4 : 0;
    for (const Run& run : work.runs) {
      const int64_t begin = run.rows.begin * row_taps;
      const int64_t batch = (run.rows.end - run.rows.begin) * row_taps;
      const int64_t step = even_piece(run.length, gemm_.mr);
      for (int64_t i = 0, rows; i < run.length; i += rows) {
        const int64_t m = std::min(step, run.length - i);
        const int64_t tiles =
            quarters > 0 ? 1 : output_.at_once(run.length - i, m, panel.n, batch, sums);
        rows = tiles * m;
        const int64_t out = run.output + i * output_pixel_ + panel.first * out_strides_.c;
        Acc* c = sum;
        if constexpr (std::is_same_v<T, Acc>)
          if (direct_) c = to_ + out;
        const int64_t ldc = direct_ ? output_pixel_ : gemm_.nr;
        // No tap reaches these pixels.
        if (batch == 0 && first)
          for (int64_t j = 0; j < m; ++j) std::fill_n(c + j * ldc, panel.n, Acc{});
        for (int64_t t = 0; t < batch; ++t) {
          const TapItems& tap = taps[begin + t];
          tap_a[t] = a + run.a + i * a_pixel_ + tap.a + k0;
          tap_b[t] = panel.b + tap.b + k0 * gemm_.nr;
        }
        const GemmTile tile{.tiles = tiles,
                            .m = m,
                            .n = panel.n,
                            .k = std::min(k_block_, k_ - k0),
                            .batch = batch,
                            .a = tap_a,
                            .lda = a_pixel_,
                            .b = tap_b,
                            .ahead = quarters > 0 ? ahead : nullptr,
                            .ahead_step = quarters > 0 ? 64 : 0,
                            .c = c,
                            .ldc = ldc,
                            .accumulate = !first};
        if (quarters-- > 0) ahead += panel_items() * tile.k / k_ / 4;
        if (last) output_.finish(tile, panel.first, out, finishing_.get(), sums);
        else if (batch > 0) gemm_.run(tile);
        if (k_block_ < k_) sum += rows * gemm_.nr;
      }
    }
  }
}

}  // namespace

void run_taps(const ConvPlan& plan, const TapConv& conv, const void* source, const void* packed,
              const SourceMap& map, const EpilogueFusion& epilogue, void* output) {
  visit_items(plan,
              [&]<class T, class Operand>(std::type_identity<T>, std::type_identity<Operand>) {
                TapEngine<T, Operand>(plan, conv, static_cast<const T*>(source),
                                      static_cast<const Operand*>(packed), map, epilogue,
                                      static_cast<T*>(output))
                    .run();
              });
}

}  // namespace quern::kernels
