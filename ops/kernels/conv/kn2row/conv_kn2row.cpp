// conv_kn2row: forward to few output channels, dgrad to few input channels. There a micro-kernel
// whose columns are output channels computes mostly zeros. Here its columns are pixels, and what a
// row of the filter has for each output channel are its rows (kn2row: Vasudevan et al., Parallel
// Multi Channel Convolution using General Matrix Multiplication, 2017; of theirs, all taps are
// rows, here those of a column are summed as products):
//
//   for each cell (rows of outputs of an image), in parallel
//     the rows of the source that they read to panels B[row][panel of nr pixels], channels are k
//     for each panel, row of outputs                            B of its taps' rows in L1 or L2
//       Z[tap of x, output channel][pixel] = Σ over taps of y W[tap of y] · B[its row]
//     for each row of outputs
//       out[channel][pixel] = Σ over taps of x Z[tap, channel][pixel + shift]
//       the epilogue, the store                                                conv/epilogue
//
// With a stride, forward has Z of each remainder of a pixel for its taps alone; dgrad sums for each
// remainder its own.
#include "quern/ops/kernels/conv/kn2row/kn2row.h"

#include <algorithm>
#include <tuple>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/per_thread.h"
#include "quern/tensor/span.h"

namespace quern::kernels {
namespace {

template <class T>
class Kn2rowEngine {
 public:
  using Acc = Accumulator<T>;

  Kn2rowEngine(const Kn2rowPlan& plan, const void* source, const void* packed,
               const ChannelMap& map, const Epilogue& epilogue, void* output)
      : plan_(plan),
        conv_(plan.conv),
        gemm_(*plan.gemm),
        source_(static_cast<const T*>(source)),
        packed_(static_cast<const T*>(packed)),
        map_(map),
        output_(epilogue, gemm_, plan.out_strides, plan.out_strides.x, plan.problem.n,
                conv_.output_channels, plan.grid.count(), static_cast<T*>(output)),
        scratch_(plan.most_source_rows * plan.row_items(), plan.most_rows() * plan.z_items(),
                 conv_.output_channels * conv_.x.output, kPixels * conv_.output_channels,
                 map.scale ? conv_.source_channels * conv_.x.source : 0,
                 output_.scratch_items(kPixels), 2 * conv_.y.kernel) {}

  void run() const {
    parallel_for(plan_.grid.count(), [&](int64_t i) { compute(i); });
    output_.merge([&](int64_t i) {
      int64_t rows = 0;
      each_row(plan_.grid[i], [&](const Phase&, int64_t) { ++rows; });
      return rows * conv_.x.output;
    });
  }

 private:
  static constexpr int64_t kPixels = 128;  // that are completed at once

  /// f(phase, index) of the rows of outputs of a block.
  template <class F>
  void each_row(const Block& block, F f) const {
    for (int64_t p = 0; p < conv_.y.phases(); ++p) {
      const Phase phase = conv_.y.phase(p);
      for (int64_t i = block.row; i < std::min(block.row + block.rows, phase.count); ++i)
        f(phase, i);
    }
  }

  /// What a cell works with.
  struct Memory {
    T* panels;              // of the source's rows
    Acc* z;                 // of the rows of outputs
    Acc* row;               // of outputs, [channel][pixel]
    Acc* tile;              // of it, [pixel][channel]
    T* mapped;              // a row of the source
    T* completed;           // what output_ takes
    const void** products;  // their A, then their B
  };

  void compute(int64_t block_index) const;
  void pack_row(const T* row, const Memory& memory, T* panels) const;
  Prefetch next_source(int64_t block_index) const;
  void multiply(int64_t block_index, const Axis::Range& rows, const Memory& memory) const;
  void sum_taps(const Acc* z, Acc* row) const;
  void store_row(int64_t offset, const Memory& memory, PanelSums<Acc>& totals) const;

  const Kn2rowPlan& plan_;
  const Kn2rowConv& conv_;
  const GemmKernel& gemm_;
  const T *source_, *packed_;
  const ChannelMap map_;
  const TileOutput<T> output_;
  const PerThread<T, Acc, Acc, Acc, T, T, const void*> scratch_;
};

template <class T>
void Kn2rowEngine<T>::compute(int64_t block_index) const {
  const Block block = plan_.grid[block_index];
  const Axis::Range rows = conv_.source_rows(block);
  const auto memory = std::make_from_tuple<Memory>(scratch_.get());
  {
    const PartSpan part("pack");
    for (int64_t row = rows.begin; row < rows.end; ++row)
      pack_row(source_ + block.image * plan_.source_strides.n + row * plan_.source_strides.y,
               memory, memory.panels + (row - rows.begin) * plan_.row_items());
  }
  multiply(block_index, rows, memory);
  PanelSums<Acc> totals = output_.sums(block_index, 0, conv_.output_channels);
  const Acc* z = memory.z;
  each_row(block, [&](const Phase& phase, int64_t i) {
    const Axis::Range live = conv_.y.live_taps(phase, i);
    if (live.begin == live.end)
      std::fill_n(memory.row, conv_.output_channels * conv_.x.output, Acc{});
    else sum_taps(z, memory.row);
    z += plan_.z_items();
    store_row(block.image * plan_.out_strides.n +
                  (phase.start + i * conv_.y.output_step) * plan_.out_strides.y,
              memory, totals);
  });
  totals.flush();
}

/// A row of the source, mapped, a plane of its pixels after the other, to panels.
template <class T>
void Kn2rowEngine<T>::pack_row(const T* row, const Memory& memory, T* panels) const {
  const Axis& x = conv_.x;
  const int64_t nr = gemm_.nr, channels = conv_.source_channels;
  ImageStrides strides = plan_.source_strides;
  if (map_.scale) {
    const bool innermost = strides.c == 1;
    map_matrix<T>({.src = row,
                   .src_stride = innermost ? channels : strides.c,
                   .dst = memory.mapped,
                   .dst_stride = innermost ? channels : x.source,
                   .rows = innermost ? x.source : channels,
                   .cols = innermost ? channels : x.source,
                   .map = map_,
                   .rows_are_channels = !innermost});
    row = memory.mapped;
    strides = {plan_.problem.format, channels, 1, x.source};
  }
  const int64_t items = panel_elements(gemm_, channels);
  for (int64_t plane = 0; plane < x.planes; ++plane) {
    const Axis::Range inside = x.inside(plane, 0, conv_.positions());
    for (int64_t p = 0; p < plan_.panels * nr; p += nr, panels += items) {
      const int64_t begin = std::clamp(inside.begin, p, p + nr);
      const int64_t end = std::clamp(inside.end, begin, p + nr);
      if (end - begin < nr || padded_k(gemm_, channels) != channels)
        std::fill_n(panels, items, T{});
      if (begin < end)
        pack_panel_rows(panel_format(gemm_), row + x.source_at(plane, 0, begin) * strides.x,
                        strides.c, x.step * strides.x, channels, end - begin, 0,
                        panels + (begin - p) * gemm_.kr);
    }
  }
}

/// What the next block reads, but for the rows that this one has packed.
template <class T>
Prefetch Kn2rowEngine<T>::next_source(int64_t block_index) const {
  Prefetch prefetch;
  if (block_index + 1 == plan_.grid.count()) return prefetch;
  const Block block = plan_.grid[block_index], next = plan_.grid[block_index + 1];
  Axis::Range rows = conv_.source_rows(next);
  if (next.image == block.image) rows.begin = std::max(rows.begin, conv_.source_rows(block).end);
  prefetch.add(source_, sizeof(T), plan_.source_strides, {0, conv_.source_channels},
               {next.image, 1, rows.begin, rows.end - rows.begin});
  return prefetch;
}

template <class T>
void Kn2rowEngine<T>::multiply(int64_t block_index, const Axis::Range& rows,
                               const Memory& memory) const {
  const KernelUse use(gemm_);
  const Block block = plan_.grid[block_index];
  Prefetch prefetch = next_source(block_index);
  const int64_t items = panel_elements(gemm_, conv_.source_channels);
  const int64_t k = padded_k(gemm_, conv_.source_channels), channels = conv_.output_channels;
  const void **a = memory.products, **b = a + conv_.y.kernel;
  for (int64_t plane = 0; plane < conv_.x.planes; ++plane) {
    const int64_t first = plan_.taps_before(plane) * channels;
    const int64_t m = plan_.taps_before(plane + 1) * channels - first;
    const int64_t step = even_piece(m, gemm_.mr);
    for (int64_t panel = 0; panel < plan_.panels; ++panel) {
      Acc* to = memory.z + first * plan_.z_pitch + panel * gemm_.nr;
      each_row(block, [&](const Phase& phase, int64_t i) {
        const Axis::Range live = conv_.y.live_taps(phase, i);
        for (int64_t j = 0; j < m && live.begin < live.end; j += step) {
          for (int64_t t = live.begin; t < live.end; ++t) {
            const Tap tap = conv_.y.tap(phase, t);
            const int64_t row = i * conv_.y.stride() + tap.offset - rows.begin;
            a[t - live.begin] = packed_ + (tap.kernel * plan_.z_rows() + first + j) * k;
            b[t - live.begin] =
                memory.panels + row * plan_.row_items() + (plane * plan_.panels + panel) * items;
          }
          const int64_t batch = live.end - live.begin;
          const Prefetch::Lines lines = prefetch.next(batch * k / (2 * gemm_.kr), b[0]);
          gemm_.run({.m = std::min(step, m - j),
                     .n = std::min<int64_t>(gemm_.nr, conv_.positions() - panel * gemm_.nr),
                     .k = k,
                     .batch = batch,
                     .a = a,
                     .lda = k,
                     .b = b,
                     .prefetch = lines.at,
                     .prefetch_step = lines.step,
                     .c = to + j * plan_.z_pitch,
                     .ldc = plan_.z_pitch,
                     .accumulate = false});
        }
        to += plan_.z_items();
      });
    }
  }
}

/// A row of outputs from its Z.
template <class T>
void Kn2rowEngine<T>::sum_taps(const Acc* z, Acc* row) const {
  const int64_t channels = conv_.output_channels, width = conv_.x.output;
  std::fill_n(row, channels * width, Acc{});
  for (const Kn2rowPlan::TapOfX& t : plan_.taps) {
    const int64_t n = t.phase.count, step = conv_.x.output_step;
    for (int64_t channel = 0; channel < channels; ++channel, z += plan_.z_pitch) {
      const Acc* from = z + t.tap.shift;
      Acc* to = row + channel * width + t.phase.start;
      if (step == 1)
        for (int64_t i = 0; i < n; ++i) to[i] += from[i];
      else
        for (int64_t i = 0; i < n; ++i) to[i * step] += from[i];
    }
  }
}

/// The row to where its outputs begin.
template <class T>
void Kn2rowEngine<T>::store_row(int64_t offset, const Memory& memory,
                                PanelSums<Acc>& totals) const {
  const int64_t channels = conv_.output_channels, width = conv_.x.output;
  for (int64_t i = 0; i < width; i += kPixels) {
    const int64_t m = std::min(kPixels, width - i);
    copy_matrix(sizeof(Acc), memory.row + i, 1, width, memory.tile, channels, m, channels);
    output_.complete_sums(memory.tile, channels, m, channels, 0, offset + i * plan_.out_strides.x,
                          memory.completed, totals);
  }
}

/// Multiplications, sums of taps and packing ÷ the multiplications of conv_brgemm, whose columns
/// fill part of a tile: a row of few pixels fills none here either, and with a stride a pixel that
/// was packed meets few taps. Where channels are not innermost, conv_brgemm transposes, too.
double relative_cost(const Kn2rowConv& conv, MemoryFormat format, const GemmKernel& gemm) {
  constexpr int64_t kLeastRows = 8;  // of a tile: fewer wait for the additions before theirs
  // What takes no longer for more channels, in channels that are multiplied in that time: adding a
  // row of products to the outputs; packing a pixel; beginning a tile of conv_brgemm.
  const bool pairs = gemm.kr > 1;
  constexpr double kAdded = 13;
  const double packing = pairs ? 53 : 10, beginning = pairs ? 4 : 2;
  // Rows that are multiplied in the time in which one is transposed, and in which it is packed.
  const double transposed_rows = 9.0 / 32 * gemm.nr, packed_rows = 1.5 * transposed_rows;
  const int64_t narrowest = gemm.nr > 16 ? gemm.nr / 2 : gemm.nr;  // columns of a tile
  int64_t rows = 0, pixels = 0, rows_read = 0;
  for (int64_t plane = 0; plane < conv.x.planes; ++plane) {
    int64_t taps = 0;
    for (int64_t p = 0; p < conv.x.phases(); ++p)
      for (int64_t i = 0; i < conv.x.phase(p).taps; ++i)
        taps += conv.x.tap(conv.x.phase(p), i).plane == plane;
    rows += std::max(kLeastRows, taps * conv.output_channels);
  }
  for (int64_t p = 0; p < conv.x.phases(); ++p)
    pixels += conv.x.phase(p).count * conv.x.phase(p).taps;
  for (int64_t p = 0; p < conv.y.phases(); ++p)
    rows_read += conv.y.phase(p).count * conv.y.phase(p).taps;
  const auto channels = static_cast<double>(conv.source_channels);
  const auto columns = static_cast<double>(round_up(conv.positions(), narrowest));
  const double source = static_cast<double>(conv.y.source * conv.x.planes) * columns;
  const double packed = source * packed_rows * (channels + packing);
  const double mine = static_cast<double>(rows_read * rows) * columns * (channels + kAdded);
  const double theirs =
      static_cast<double>(rows_read * pixels * narrowest) * (channels + beginning);
  const double transposed =
      format == MemoryFormat::contiguous ? source * transposed_rows * channels : 0;
  return (mine + packed) / (theirs + transposed);
}

/// Why not, although it can: where conv_brgemm is as fast, or faster.
const char* why_not(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  if (const char* reason = why_kn2row_cannot(p, pass, gemm)) return reason;
  if (p.kh * p.kw == 1) return "filters of one pixel have no taps to sum up";
  const Kn2rowConv conv(p, pass);
  // AVX-512 and AMX have tiles of half a panel, of which these are half.
  if (conv.output_channels > std::min(8, gemm.nr / 2)) return "output channels fill half a tile";
  if (conv.source_channels < 16) return "products of few channels take less time than sums of taps";
  if (conv.x.step > 1 && p.format == MemoryFormat::contiguous)
    return "every other pixel of a row takes longer to copy";
  if (relative_cost(conv, p.format, gemm) > 0.95)
    return "rows of outputs are short, or stride is long";
  return nullptr;
}

/// Of the columns of half a panel of AVX-512, conv_brgemm multiplies the empty ones, too.
double saving(const ConvProblem& p, ConvPass pass) {
  return 16.0 / static_cast<double>(Kn2rowConv(p, pass).output_channels);
}

constexpr ConvKernel kRecords[] = {
    {.name = "kn2row", .why_not = why_not, .plan = make_conv_plan<Kn2rowPlan>, .saving = saving},
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

const char* why_kn2row_cannot(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  if (pass == ConvPass::wgrad) return "only forward and dgrad have few outputs";
  if (p.groups != 1) return "channels are in groups";
  if (gemm.a != p.dtype) return "operands are rounded where they are packed";
  if (p.x_gap != 0 || p.y_gap != 0) return "rows have gaps between them";
  const Kn2rowConv conv(p, pass);
  if (conv.output_channels > gemm.nr) return "output channels do not fit a panel";
  // Divided, since the product may overflow.
  int64_t left = cache::kMostScratch / itemsize(p.dtype);
  for (int64_t factor : {conv.y.kernel, conv.x.planes, conv.positions(),
                         std::max(conv.source_channels, conv.x.kernel * conv.output_channels)})
    left /= std::max<int64_t>(factor, 1);
  if (left == 0) return "scratch for one row of outputs is over 256 MiB";
  return nullptr;
}

void Kn2rowPlan::compute(const void* source, const void* packed, void* output,
                         const Epilogue& epilogue, const ChannelMap& map) const {
  visit_floating("conv2d", problem.dtype, [&]<class T>(std::type_identity<T>) {
    Kn2rowEngine<T>(*this, source, packed, map, epilogue, output).run();
  });
}

}  // namespace quern::kernels
