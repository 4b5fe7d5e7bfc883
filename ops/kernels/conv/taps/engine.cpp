// The engine of forward and dgrad.
//
//   for each cell (block of images and rows, range of panels), in parallel, the last ones in pieces
//     for each group
//       copy the block of the source to scratch    aims at half of L2; before, if cells share it
//       for each panel of nr output channels
//         for each phase of y, of x
//           for each block of source channels      B of all taps aims at a third of L2
//             for each run of output pixels, for each tile of mr
//               C[mr × nr] += Σ taps A[mr × channels] · B[channels × nr]
//               after the last block: the epilogue, rounding, store    conv/epilogue
//
// A is the source itself where channels are innermost and zeros lie wherever taps reach beyond its
// rows.
#include <algorithm>
#include <cstddef>
#include <span>

#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/ops/kernels/conv/taps/strips.h"
#include "quern/ops/kernels/conv/taps/taps.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

/// T is what source and output hold, Operand what is multiplied: T, or terms of bf16.
template <class T, class Operand>
class TapEngine {
 public:
  using Acc = Accumulator<T>;

  TapEngine(const TapPlan& plan, const T* source, const Operand* packed, const ChannelMap& map,
            const Epilogue& epilogue, T* output);
  void run() {
    if (plan_.shared_items > 0) copy_shared();
    parallel_for(plan_.cells(), plan_.pieces, [&](int64_t cell, int64_t begin, int64_t end) {
      const KernelUse use(gemm_);
      const int64_t index = cell / plan_.parts;
      Block block = plan_.grid[index];
      const int64_t first = block.rows * begin / plan_.pieces,
                    last = block.rows * end / plan_.pieces;
      block.row += first, block.rows = last - first;
      if (block.rows > 0) run_cell(index, block, cell % plan_.parts);
    });
    output_.merge([&](int64_t block) { return plan_.pixels_of(plan_.grid[block]); });
  }

 private:
  /// nr output channels of a group.
  struct Panel {
    int64_t first, n;     // in the output
    const Operand* b;     // [term][tap][k/kr][nr][kr]
    const Operand* next;  // what is multiplied after it; null if nothing is
    bool first_of_cell;
  };

  const Operand* source_in_place(const Block& block, int64_t group) const {
    if constexpr (std::is_same_v<T, Operand>)
      return source_ + group * conv_.source_channels + block.image * plan_.source_strides.n +
             block.row * conv_.y.stride() * plan_.source_strides.y;
    else return nullptr;
  }
  /// Does each thread copy what its cells read?
  bool copies() const { return !plan_.in_place && plan_.shared_items == 0; }
  void copy_shared() const;
  const Operand* copy_once(int64_t block, int64_t group) const;
  /// Some panels of a block, or of some of its rows.
  void run_cell(int64_t block_index, const Block& block, int64_t part) const;
  Prefetch prefetch_of(int64_t block_index, int64_t part) const;
  void run_panel(const PhaseWork& work, const Panel& panel, const Operand* a, PanelSums<Acc>& sums,
                 Prefetch& next_block) const;

  const TapPlan& plan_;
  const TapConv& conv_;
  const GemmKernel& gemm_;
  const T* source_;
  const Operand* packed_;
  const ChannelMap map_;
  T* to_;
  Workspace shared_;  // [block][group]
  TileOutput<T> output_;
  bool direct_;  // C is the output

  // What cells work with.
  PerThread<Operand> scratch_;          // the source, if it copies()
  mutable CachedVector<int64_t> held_;  // by its scratch: block · groups + its first, or -1
  WorkMemory work_;
  // Sums [tile][mr][nr] of a panel, or of one tile if each is completed at once; outputs that are
  // being completed; where the products of a tile read A and B.
  PerThread<Acc, T, const void*, const void*> tile_memory_;
};

template <class T, class Operand>
TapEngine<T, Operand>::TapEngine(const TapPlan& plan, const T* source, const Operand* packed,
                                 const ChannelMap& map, const Epilogue& epilogue, T* output)
    : plan_(plan),
      conv_(plan.conv),
      gemm_(*plan.gemm),
      source_(source),
      packed_(packed),
      map_(map),
      to_(output),
      shared_(plan_.grid.count() * conv_.groups * plan_.shared_items * plan_.item),
      output_(epilogue, gemm_, plan_.out_strides, plan_.output_pixel, conv_.images,
              plan_.output_total, plan_.grid.count(), output),
      direct_(output_.direct()),
      scratch_(copies() ? plan_.scratch_items(plan_.grid[0]) : 0),
      held_(static_cast<size_t>(copies() ? num_threads() : 0), -1),
      work_(plan_),
      tile_memory_(direct_ ? 0 : std::max(plan_.kept_pixels(), output_.group_rows()) * gemm_.nr,
                   output_.scratch_items(gemm_.mr), plan_.max_products(), plan_.max_products()) {}

template <class T, class Operand>
void TapEngine<T, Operand>::copy_shared() const {
  // Channels that pad k are zeroed together with the others.
  const int64_t slices = plan_.k == conv_.k() ? ceil_div(conv_.source_channels, 64) : 1;
  parallel_for(plan_.grid.count() * conv_.groups * slices, [&](int64_t i) {
    const int64_t scratch = i / slices;
    copy_source(plan_, source_, map_, plan_.grid[scratch / conv_.groups], scratch % conv_.groups,
                piece(conv_.source_channels, slices, i % slices),
                shared_.as<Operand>() + scratch * plan_.shared_items);
  });
}

/// The source of a group in a block, to this thread's scratch unless it is there: the cell before
/// mostly was of the same block. Tells where.
template <class T, class Operand>
const Operand* TapEngine<T, Operand>::copy_once(int64_t block, int64_t group) const {
  const int64_t index = group % plan_.copied_groups, first = group - index;
  int64_t& held = held_[static_cast<size_t>(thread_index())];
  const int64_t wanted = block * conv_.groups + first;
  if (held != wanted) {
    const int64_t groups = std::min(plan_.copied_groups, conv_.groups - first);
    copy_source(plan_, source_, map_, plan_.grid[block], first, {0, groups * conv_.source_channels},
                scratch_.get());
    held = wanted;
  }
  return scratch_.get() + index * conv_.source_channels;
}

template <class T, class Operand>
void TapEngine<T, Operand>::run_cell(int64_t block_index, const Block& block, int64_t part) const {
  const std::span<const PhaseWork> work = plan_.work_of(block, work_);
  Prefetch next_block = prefetch_of(block_index, part);
  for (int64_t group = 0; group < conv_.groups; ++group) {
    const Operand* const a =
        plan_.in_place ? source_in_place(block, group)
        : plan_.shared_items > 0
            ? shared_.as<Operand>() + (block_index * conv_.groups + group) * plan_.shared_items
            : copy_once(block_index, group);
    const int64_t begin = plan_.panels * part / plan_.parts,
                  end = plan_.panels * (part + 1) / plan_.parts;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * gemm_.nr;
      const Operand* b = packed_ + (group * plan_.panels + p) * plan_.panel_items();
      const Panel panel{.first = group * conv_.output_channels + first,
                        .n = std::min<int64_t>(gemm_.nr, conv_.output_channels - first),
                        .b = b,
                        // By this cell, or the next, which the same thread mostly runs.
                        .next = p + 1 < plan_.panels ? b + plan_.panel_items() : nullptr,
                        .first_of_cell = p == begin};
      PanelSums<Acc> panel_sums = output_.sums(block_index, panel.first, panel.n);
      for (const PhaseWork& phase : work) {
        if (phase.taps.empty() && output_.adds_in_place()) continue;  // adds nothing
        run_panel(phase, panel, a, panel_sums, next_block);
      }
      panel_sums.flush();
    }
  }
}

/// The source of the next block, which this thread copies next, or reads in rows cut at the
/// padding: the tiles of the last cell of a block prefetch it.
template <class T, class Operand>
Prefetch TapEngine<T, Operand>::prefetch_of(int64_t block_index, int64_t part) const {
  Prefetch prefetch;
  const ImageStrides& strides = plan_.source_strides;
  const bool last = part + 1 == plan_.parts && block_index + 1 < plan_.grid.count();
  const bool all_of_it = strides.c == 1 && conv_.groups == 1 && conv_.y.planes == conv_.y.step;
  const bool reads_cut = plan_.in_place && !plan_.row_pieces.empty();
  if (!(copies() || reads_cut) || !all_of_it || !last) return prefetch;
  const Block next = plan_.grid[block_index + 1];
  const int64_t begin = std::max<int64_t>(0, conv_.y.source_at(0, next.row, 0));
  const int64_t end =
      std::min(conv_.y.source, conv_.y.source_at(0, next.row + next.rows, conv_.y.reach));
  const int64_t row = strides.y * static_cast<int64_t>(sizeof(T));
  if (begin < end)
    prefetch.add(source_ + next.image * strides.n + begin * strides.y, row, row,
                 (next.images - 1) * conv_.y.source + end - begin);
  return prefetch;
}

/// One panel of output channels of one phase.
template <class T, class Operand>
void TapEngine<T, Operand>::run_panel(const PhaseWork& work, const Panel& panel, const Operand* a,
                                      PanelSums<Acc>& sums, Prefetch& next_block) const {
  const auto [kept, completing, tap_a, tap_b] = tile_memory_.get();
  const int64_t products = term_products(plan_.bf16_terms);

  for (int64_t k0 = 0; k0 < plan_.k; k0 += plan_.k_block) {
    const bool first = k0 == 0, last = k0 + plan_.k_block >= plan_.k;
    Acc* sum = kept;
    // Weights, which may come from memory, are prefetched a panel ahead, by four tiles, which have
    // time for a quarter of it each.
    const Operand* weights = panel.next ? panel.next + plan_.panel_items() * k0 / plan_.k : nullptr;
    int64_t quarters = weights ? 4 : 0;
    const auto fetched = [&](int64_t steps, const Operand* next_tile) -> Prefetch::Lines {
      if (quarters > 0) return {weights, 64};
      // The first panel of a cell is the one that brings A to L2, in reads too short and scattered
      // for hardware prefetchers: its tiles prefetch each other's rows.
      if (panel.first_of_cell && plan_.source_step > 0) return {next_tile, plan_.source_step};
      return next_block.next(steps, nullptr);
    };
    const int64_t group = last ? output_.group_rows() : 0;
    for (const Run& run : work.runs) {
      GemmTile waiting{};  // rows that are summed, to be completed together
      int64_t waiting_out = 0;
      const int64_t first_tap = run.columns.begin * products;
      const int64_t live = (run.columns.end - run.columns.begin) * products;  // of a row of taps
      const int64_t batch = (run.rows.end - run.rows.begin) * live;
      const int64_t step = even_piece(run.length, gemm_.mr);
      for (int64_t i = 0, rows; i < run.length; i += rows) {
        const int64_t m = std::min(step, run.length - i);
        const int64_t tiles = quarters > 0 ? 1 : output_.at_once(run.length - i, m, batch, sums);
        rows = tiles * m;
        const int64_t from = run.a + i * plan_.a_pixel;
        const int64_t out = run.output + i * plan_.output_pixel + panel.first * plan_.out_strides.c;
        const bool joins_group = group > 0 && batch > 0;
        Acc* c = sum;
        if (joins_group && plan_.k_block >= plan_.k) c += waiting.m * gemm_.nr;
        if constexpr (std::is_same_v<T, Acc>)
          if (direct_) c = to_ + out;
        const int64_t ldc = direct_ ? plan_.output_pixel : gemm_.nr;
        // No tap reaches these pixels.
        if (batch == 0 && first)
          for (int64_t j = 0; j < m; ++j) std::fill_n(c + j * ldc, panel.n, Acc{});
        const int64_t k = std::min(plan_.k_block, run.k.size - k0);
        const Prefetch::Lines lines =
            fetched(tiles * batch * k / (2 * gemm_.kr), a + from + rows * plan_.a_pixel);
        for (int64_t row = run.rows.begin, t = 0; row < run.rows.end; ++row)
          for (const TapItems& tap : work.taps.subspan(row * work.row_taps + first_tap, live)) {
            tap_a[t] = a + from + tap.a + (run.k.begin + k0);
            tap_b[t++] = panel.b + tap.b + (run.k.begin + k0) * gemm_.nr;
          }
        GemmTile tile{.tiles = tiles,
                      .m = m,
                      .n = panel.n,
                      .k = k,
                      .batch = batch,
                      .a = tap_a,
                      .lda = plan_.a_pixel,
                      .b = tap_b,
                      .prefetch = lines.at,
                      .prefetch_step = lines.step,
                      .c = c,
                      .ldc = ldc,
                      .accumulate = !first};
        if (quarters-- > 0) weights += plan_.panel_items() * k / plan_.k / 4;
        if (last && !joins_group) output_.complete(tile, panel.first, out, completing, sums);
        else if (batch > 0) gemm_.run(tile);
        if (joins_group) {
          if (waiting.m == 0) waiting.c = c, waiting_out = out;
          waiting.m += rows;
          const int64_t next = i + rows;
          if (waiting.m + step > group || next == run.length) {
            waiting.n = panel.n, waiting.ldc = ldc;
            output_.complete(waiting, panel.first, waiting_out, completing, sums);
            waiting.m = 0;
          }
        }
        if (plan_.k_block < plan_.k) sum += rows * gemm_.nr;
      }
    }
  }
}

}  // namespace

void TapPlan::compute(const void* source, const void* packed, void* output,
                      const Epilogue& epilogue, const ChannelMap& map) const {
  if (strips) return run_strips(*this, {source, packed, output, map}, epilogue);
  visit_items(*this, [&]<class T, class Operand>(std::type_identity<T>,
                                                 std::type_identity<Operand>) {
    TapEngine<T, Operand>(*this, static_cast<const T*>(source), static_cast<const Operand*>(packed),
                          map, epilogue, static_cast<T*>(output))
        .run();
  });
}

}  // namespace quern::kernels
