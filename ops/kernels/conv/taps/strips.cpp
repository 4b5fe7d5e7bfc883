// Forward and dgrad by strips (gemm/strip.h), for micro-kernels so fast that what they read and
// write is what counts.
//
//   for each cell (block of images and rows, range of panels), in parallel
//     for each group, for some rows of the block
//       copy their source to scratch, unless it is read where it lies
//       for each phase of y, of x
//         for each strip, some tiles of neighbouring positions             A stays in L1
//           for each panel of nr output channels, for each tile              B comes from L2
//             C[mr × nr] = Σ taps A[mr × channels] · B[channels × nr], then the epilogue
//
// Positions of A are neighbours over the end of a row and of an image: padding between them is
// computed like a pixel, and left out when tiles are completed.
#include <algorithm>
#include <span>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/ops/kernels/conv/taps/strips.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/per_thread.h"

namespace quern::kernels {
namespace {

/// Cuts runs of outputs into tiles, in memory that is given.
class TileCutter {
 public:
  /// `straight`: a row that follows the one before, mr of them.
  TileCutter(const TapPlan& plan, const StripRow* straight, StripTile* tiles, StripRow* rows)
      : plan_(plan), straight_(straight), tiles_(tiles), rows_(rows) {}
  /// Of a run at most, beside those that are full.
  static int64_t most_tiles(const TapPlan& plan, int64_t outputs) {
    return outputs / plan.gemm->mr + 2 * plan.max_runs();
  }

  std::span<const StripTile> cut(std::span<const Run> runs) const {
    const int64_t mr = plan_.gemm->mr;
    StripTile* end = tiles_;
    StripRow* row = rows_;
    int64_t done = 0;  // outputs of the first run that have a tile
    for (size_t i = 0; i < runs.size();) {
      const Run& run = runs[i];
      StripTile tile{.a = run.a + done * plan_.a_pixel,
                     .out = run.output + done * plan_.output_pixel,
                     .m = std::min(mr, run.length - done),
                     .rows = straight_,
                     .outputs = std::min(mr, run.length - done)};
      done += tile.m;
      if (done == run.length) {
        ++i, done = 0;
        if (tile.m < mr) row = join(runs, i, done, tile, row);
      }
      *end++ = tile;
    }
    return {tiles_, end};
  }

 private:
  /// Takes in what the next runs have in the tile's reach; its rows, from `rows` on, if they do.
  StripRow* join(std::span<const Run> runs, size_t& i, int64_t& done, StripTile& tile,
                 StripRow* rows) const {
    const int64_t mr = plan_.gemm->mr;
    const auto row_of = [&](const Run& run) {  // or none in reach
      const int64_t distance = run.a - tile.a;
      return distance > 0 && distance % plan_.a_pixel == 0 ? distance / plan_.a_pixel : mr;
    };
    if (i == runs.size() || row_of(runs[i]) >= mr) return rows;
    StripRow* end = std::copy_n(straight_, tile.outputs, rows);
    while (i < runs.size() && row_of(runs[i]) < mr) {
      const Run& run = runs[i];
      const int64_t row = row_of(run), length = std::min(run.length, mr - row);
      const int64_t to = run.output - tile.out;
      for (int64_t j = 0; j < length; ++j) *end++ = {row + j, to + j * plan_.output_pixel};
      tile.m = row + length;
      if (length < run.length) {
        done = length;
        break;
      }
      ++i;
    }
    tile.rows = rows;
    tile.outputs = end - rows;
    return end;
  }

  const TapPlan& plan_;
  const StripRow* straight_;
  StripTile* tiles_;
  StripRow* rows_;
};

/// T is what source and output hold; operands are bf16.
template <class T>
class StripEngine {
 public:
  StripEngine(const TapPlan& plan, const StripOperands& operands, const Epilogue& epilogue)
      : plan_(plan),
        conv_(plan.conv),
        gemm_(*plan.gemm),
        source_(static_cast<const T*>(operands.source)),
        packed_(static_cast<const bfloat16*>(operands.packed)),
        map_(operands.map),
        output_(epilogue, gemm_, plan.out_strides, plan.output_pixel, plan.conv.images,
                plan.output_total, plan.grid.count(), static_cast<T*>(operands.output)),
        scratch_(plan.in_place ? 0 : plan.scratch_items(copied(plan.grid[0], 0))),
        held_(static_cast<size_t>(num_threads()), -1),
        pivot_(plan.problem.sums ? ceil_div(plan.panels, plan.parts) * gemm_.mr * gemm_.nr : 0),
        work_(plan),
        straight_(static_cast<size_t>(gemm_.mr)),
        cut_(TileCutter::most_tiles(plan, plan.pixels_of(plan.grid[0])),
             plan.pixels_of(plan.grid[0])),
        products_(plan.max_products(), plan.max_products()) {
    for (int64_t row = 0; row < gemm_.mr; ++row)
      straight_[static_cast<size_t>(row)] = {row, row * plan.output_pixel};
  }

  void run() {
    parallel_for(plan_.cells(), [&](int64_t cell) {
      const KernelUse use(gemm_);
      run_cell(cell / plan_.parts, cell % plan_.parts);
    });
    output_.merge([&](int64_t block) { return plan_.pixels_of(plan_.grid[block]); });
  }

 private:
  /// Some panels of a group.
  struct Panels {
    int64_t first, n;  // channels of the output
    int64_t count;
    const bfloat16* b;
  };
  /// What is to be prefetched, so many bytes a call.
  struct StripPrefetch {
    const std::byte* at = nullptr;
    int64_t bytes = 0, a_call = 0;

    void share(int64_t calls) { a_call = round_up(ceil_div(bytes, calls), 64); }
    void take(GemmStrip& strip) {
      strip.prefetch = at, strip.prefetch_bytes = std::min(a_call, bytes);
      at += strip.prefetch_bytes, bytes -= strip.prefetch_bytes;
    }
  };
  /// What is copied at once, from a row of the block on.
  Block copied(const Block& block, int64_t row) const {
    if (plan_.copied_rows >= block.rows) return block;
    return {block.image, block.images, block.row + row,
            std::min(plan_.copied_rows, block.rows - row)};
  }
  void run_cell(int64_t block_index, int64_t part) const;
  void run_strip(std::span<const StripTile> tiles, const Panels& panels, int64_t products,
                 Epilogue& epilogue, StripSums& sums, StripPrefetch& prefetch) const;
  void copy_once(const Block& block, int64_t index, int64_t group) const;
  /// What a block reads of the source.
  StripPrefetch source_of(const Block& block) const;
  void start_pivot(GemmStrip strip, StripSums& sums) const;

  const TapPlan& plan_;
  const TapConv& conv_;
  const GemmKernel& gemm_;
  const T* source_;
  const bfloat16* packed_;
  const ChannelMap map_;
  TileOutput<T> output_;
  PerThread<bfloat16> scratch_;
  mutable CachedVector<int64_t> held_;  // by it: block · groups + group, if it is whole, or -1
  PerThread<float> pivot_;              // sums of a first tile
  WorkMemory work_;
  CachedVector<StripRow> straight_;
  PerThread<StripTile, StripRow> cut_;
  PerThread<const void*, const void*> products_;  // where they read A and B
};

template <class T>
void StripEngine<T>::run_cell(int64_t block_index, int64_t part) const {
  const Block block = plan_.grid[block_index];
  const auto [tile_memory, row_memory] = cut_.get();
  const TileCutter cutter(plan_, straight_.data(), tile_memory, row_memory);
  const Extent range = piece(plan_.panels, plan_.parts, part);
  for (int64_t group = 0; group < conv_.groups; ++group) {
    const int64_t first = range.begin * gemm_.nr;
    const Panels panels{.first = group * conv_.output_channels + first,
                        .n = std::min(range.size * gemm_.nr, conv_.output_channels - first),
                        .count = range.size,
                        .b = packed_ + (group * plan_.panels + range.begin) * plan_.panel_items()};
    StripSums sums = output_.template sums<StripSums>(block_index, panels.first, panels.n);
    Epilogue epilogue = output_.from_channel(panels.first, sums);
    for (int64_t row = 0; row < block.rows; row += plan_.copied_rows) {
      const Block some = copied(block, row);
      StripPrefetch prefetch;
      if (row + plan_.copied_rows < block.rows)
        prefetch = source_of(copied(block, row + plan_.copied_rows));
      else if (part + 1 == plan_.parts && block_index + 1 < plan_.grid.count())
        prefetch = source_of(copied(plan_.grid[block_index + 1], 0));
      const bfloat16* a = scratch_.get();
      if constexpr (std::is_same_v<T, bfloat16>)
        if (plan_.in_place)
          a = source_ + group * conv_.source_channels + some.image * plan_.source_strides.n +
              some.row * conv_.y.stride() * plan_.source_strides.y;
      if (!plan_.in_place) copy_once(some, block_index, group);
      for (const PhaseWork& phase : plan_.work_of(some, work_)) {
        const std::span<const StripTile> tiles = cutter.cut(phase.runs);
        const bool adds_nothing = phase.taps.empty() && output_.adds_in_place();
        if (tiles.empty() || adds_nothing) continue;
        auto [tap_a, tap_b] = products_.get();
        for (const TapItems& tap : phase.taps) *tap_a++ = a + tap.a, *tap_b++ = panels.b + tap.b;
        const auto at_once = static_cast<size_t>(plan_.strip_tiles);
        prefetch.share(ceil_div(static_cast<int64_t>(tiles.size()), plan_.strip_tiles));
        for (size_t i = 0; i < tiles.size(); i += at_once)
          run_strip(tiles.subspan(i, std::min(at_once, tiles.size() - i)), panels,
                    std::ssize(phase.taps), epilogue, sums, prefetch);
      }
    }
    sums.flush();
  }
}

/// To this thread's scratch, unless the cell before had the same block.
template <class T>
void StripEngine<T>::copy_once(const Block& block, int64_t index, int64_t group) const {
  int64_t& held = held_[static_cast<size_t>(thread_index())];
  const int64_t wanted = block.rows == plan_.grid[index].rows ? index * conv_.groups + group : -1;
  if (wanted >= 0 && held == wanted) return;
  copy_source(plan_, source_, map_, block, group, {0, conv_.source_channels}, scratch_.get());
  held = wanted;
}

template <class T>
typename StripEngine<T>::StripPrefetch StripEngine<T>::source_of(const Block& block) const {
  if (conv_.groups != 1 || conv_.y.planes != conv_.y.step) return {};
  const ImageStrides& strides = plan_.source_strides;
  const int64_t begin = std::max<int64_t>(0, conv_.y.source_at(0, block.row, 0));
  const int64_t end =
      std::min(conv_.y.source, conv_.y.source_at(0, block.row + block.rows, conv_.y.reach));
  if (begin >= end) return {};
  const int64_t items = (block.images - 1) * strides.n + (end - begin) * strides.y;
  return {.at = reinterpret_cast<const std::byte*>(source_ + block.image * strides.n +
                                                   begin * strides.y),
          .bytes = items * static_cast<int64_t>(sizeof(T))};
}

/// Sums of a first tile tell where the moments' pivot is.
template <class T>
void StripEngine<T>::start_pivot(GemmStrip strip, StripSums& sums) const {
  strip.tiles = 1, strip.sums = pivot_.get();
  gemm_.run_strip(strip);
  // Its first outputs are its first rows.
  const StripTile& tile = *strip.tile;
  int64_t m = 1;
  while (m < tile.outputs && tile.rows[m].row == m) ++m;
  for (int64_t p = 0; p < strip.panels; ++p)
    sums.start_pivot({.sums = strip.sums + p * gemm_.mr * gemm_.nr,
                      .stride = gemm_.nr,
                      .m = m,
                      .n = std::min<int64_t>(gemm_.nr, strip.n - p * gemm_.nr)},
                     p * gemm_.nr);
}

template <class T>
void StripEngine<T>::run_strip(std::span<const StripTile> tiles, const Panels& panels,
                               int64_t products, Epilogue& epilogue, StripSums& sums,
                               StripPrefetch& prefetch) const {
  int64_t outputs = 0;
  for (const StripTile& tile : tiles) outputs += tile.outputs;
  const auto [tap_a, tap_b] = products_.get();
  GemmStrip strip{.tile = tiles.data(),
                  .tiles = static_cast<int64_t>(tiles.size()),
                  .panels = panels.count,
                  .n = panels.n,
                  .k = plan_.k,
                  .batch = products,
                  .a = tap_a,
                  .lda = plan_.a_pixel,
                  .b = tap_b,
                  .b_panel = plan_.panel_items(),
                  .epilogue = &epilogue};
  // Mostly the next strip follows where this one ends.
  const StripTile& last = tiles.back();
  strip.next_out = last.out + last.rows[last.outputs - 1].to + plan_.output_pixel;
  strip.next_rows = outputs, strip.next_stride = plan_.output_pixel;
  if (sums.needs_pivot()) start_pivot(strip, sums);
  if (epilogue.kind == Epilogue::Kind::moments || epilogue.kind == Epilogue::Kind::gradient)
    sums.prepare(outputs);
  prefetch.take(strip);
  gemm_.run_strip(strip);
}

}  // namespace

void run_strips(const TapPlan& plan, const StripOperands& operands, const Epilogue& epilogue) {
  if (plan.bf16_terms != 0) StripEngine<float>(plan, operands, epilogue).run();
  else StripEngine<bfloat16>(plan, operands, epilogue).run();
}

}  // namespace quern::kernels
