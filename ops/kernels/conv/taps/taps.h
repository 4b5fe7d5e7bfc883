// Forward and dgrad as sums over taps: the convolution as such, the plan, which conv_brgemm.cpp
// makes, the packed weight (weight.cpp), the engines that run it (engine.cpp; strips.cpp).
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/tensor/per_thread.h"
#include "quern/tensor/span.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

/// Forward or dgrad: destination = Σ over taps of source · weight (axis.h).
struct TapConv {
  Axis y, x;
  int64_t images, groups;
  int64_t source_channels, output_channels;  // of a group
  int64_t kernel_rows, kernel_columns;       // of taps that are products of their own
  /// A row of taps is one product over kw·source_channels consecutive items: for few source
  /// channels. Where k is padded (bf16) it reads on into the next pixels, which meet zero weights;
  /// a NaN or infinity there reaches outputs that are so much further to the left.
  bool kw_in_k;
  DType dtype;
  MemoryFormat format;
  int64_t source_gap, output_gap;  // ConvProblem's x_gap and y_gap

  int64_t kernel_taps() const { return kernel_rows * kernel_columns; }
  /// Length of one product before padding.
  int64_t k() const;
};
/// Pixels are independent of where an image ends if the kernel is 1×1, unstrided and unpadded and
/// channels are innermost: the problem as one image of all rows.
/// If `by_pixel`, and rows follow each other without gaps, a row is a pixel.
ConvProblem linearised(const ConvProblem& problem, bool by_pixel = false);
TapConv forward_taps(const ConvProblem& problem, bool by_pixel = false);
TapConv dgrad_taps(const ConvProblem& problem, bool by_pixel = false);

/// Outputs of a row that the same columns of taps reach.
struct RowPiece {
  int64_t begin, length;
  Axis::Range columns;
};

/// Output pixels that tiles run along: equally spaced in A and in the output, and reached by the
/// same taps.
struct Run {
  int64_t a, output;  // of the first pixel
  int64_t length;
  Axis::Range rows, columns;  // of taps that are products of their own, padding left out
  Extent k;                   // of each product: all of it, but with kw_in_k padding is left out
};

/// Where a product of a tap is: from an output pixel's place in A, and from a panel's weights on.
struct TapItems {
  int64_t a, b;
};

/// What a cell computes of one phase of y and one of x. The products of a tap, several where
/// operands have terms, follow each other, as do the taps of a row.
struct PhaseWork {
  std::span<const TapItems> taps;
  int64_t row_taps;  // products of a row
  std::span<const Run> runs;
};

class TapPlan;

/// What TapPlan::work_of() writes to.
struct WorkMemory : PerThread<PhaseWork, TapItems, Run> {
  explicit WorkMemory(const TapPlan& plan);
};

/// How a pass is cut into cells, panels, passes over k and runs of pixels, by the problem alone,
/// and where what tiles multiply lies. Distances count items, of the operand or of the output.
class TapPlan final : public ConvPlan {
 public:
  explicit TapPlan(const ConvChoice& choice);
  /// The packed weight is [group][panel of nr output channels][term][tap][k/kr][nr][kr].
  int64_t packed_bytes() const override;
  void pack(const void* weight, DType of_weight, void* packed) const override;
  int64_t wanted_gap() const override;

  const TapConv conv;
  const bool strips;                   // runs by strips (strips.cpp), else by panels (engine.cpp)
  int64_t item;                        // bytes of an operand's
  int64_t terms;                       // copies of an operand
  int64_t source_total, output_total;  // channels of all groups
  ImageStrides source_strides, out_strides;
  int64_t k;                               // of a product
  int64_t max_taps;                        // products that make one tile, at most
  int64_t k_block;                         // of one pass over a product
  int64_t panels;                          // of a group's output channels
  const std::vector<RowPiece> row_pieces;  // none: rows are not cut
  bool in_place;                           // A is the source
  int64_t copied_groups;                   // at a time
  int64_t pitch;                           // between positions of A
  bool by_image = false;                   // runs go along the images, else along rows
  int64_t a_pixel, output_pixel;           // between neighbouring outputs of a run
  int64_t source_step;  // bytes of A a step of a tile, where all of A is dense; else 0
  BlockGrid grid;
  int64_t parts;         // of the panels; cells are these times the grid's blocks
  int64_t pieces;        // of a cell's rows, which may be computed apart
  int64_t shared_items;  // of a block and group, if several cells read the same scratch
  int64_t strip_tiles = 0;
  int64_t copied_rows = 0;  // of a block, at a time, for strips

  int64_t cells() const { return grid.count() * parts; }
  /// Of a term of scratch.
  int64_t term_items(const Block& block) const;
  int64_t scratch_items(const Block& block) const { return terms * term_items(block); }
  int64_t panel_items() const { return terms * conv.kernel_taps() * k * gemm->nr; }
  /// In A, between neighbouring outputs of a row, and between images of a block of so many rows.
  int64_t a_column() const;
  int64_t a_image(int64_t rows) const;
  /// From an output pixel's place in A to what a tap reads for it.
  int64_t tap_items(const Block& block, const Tap& y, const Tap& x) const;
  /// Outputs of a block, those of all phases.
  int64_t pixels_of(const Block& block) const;
  /// Pixels whose sums are kept at a time, in whole tiles.
  int64_t kept_pixels() const;

  int64_t phases() const { return conv.y.phases() * conv.x.phases(); }
  int64_t max_runs() const;
  /// Of one tile.
  int64_t max_products() const { return max_taps * term_products(bf16_terms); }
  /// Products of all phases.
  int64_t tap_products() const { return conv.kernel_taps() * term_products(bf16_terms); }
  /// The taps and runs of every phase in a block, in this thread's memory.
  std::span<const PhaseWork> work_of(const Block& block, const WorkMemory& memory) const;

 private:
  void compute(const void* source, const void* packed, void* output, const Epilogue& epilogue,
               const ChannelMap& map) const override;
  std::vector<RowPiece> cut_row() const;
  bool images_are_longer() const;
  TapItems* taps_of(const Block& block, const Phase& y, const Phase& x, TapItems* end) const;
  Run* runs_along_images(const Block& block, const Phase& y, const Phase& x, Run* end) const;
  Run* runs_along_rows(const Block& block, const Phase& y, const Phase& x, Run* end) const;
  /// Can tiles read A where the source lies, if so many pixels of zeros follow each of its rows?
  bool reads_in_place(int64_t gap) const;
  /// But for padding in its rows.
  bool lies_as_a(int64_t gap) const;
  /// Can they with rows that are cut, and would each item of a copy be read by few panels only?
  bool reads_cut_rows(int64_t gap) const;
  void block_for_panels();
  void block_for_strips();
};

/// Some channels of a group's source in a block, to its scratch (terms term_items() apart, which is
/// that of the block), mapped and rounded if need be, zeros where there is padding. What positions
/// have more than channels, and what follows the last one, is zeroed with the first channel.
template <class T, class Operand>
void copy_source(const TapPlan& plan, const T* source, const ChannelMap& map, const Block& block,
                 int64_t group, Extent channels, Operand* to) {
  const PartSpan part("copy_source");
  const int64_t items = plan.term_items(block);
  const bool filled = plan.k == plan.conv.k() || plan.conv.kw_in_k;
  const int64_t copied = filled ? items - plan.k : 0;
  for (int64_t term = 0; channels.begin == 0 && term < plan.terms; ++term)
    std::fill(to + term * items + copied, to + (term + 1) * items, Operand{});
  const int64_t first = group * plan.conv.source_channels + channels.begin;
  copy_block({.item = sizeof(T),
              .strides = plan.source_strides,
              .channels = channels.size,
              .position_stride = plan.pitch,
              .channel_stride = 1,
              .map = from_channel<Accumulator<T>>(map, first),
              .bf16_terms = plan.bf16_terms,
              .term_stride = items},
             plan.conv.y, plan.conv.x, block, source + first * plan.source_strides.c,
             to + channels.begin);
}

}  // namespace quern::kernels
