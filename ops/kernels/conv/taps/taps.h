// Forward and dgrad as sums over taps: the problem, the packed weight, the engine.
#pragma once
#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/block_grid.h"
#include "quern/ops/kernels/conv/epilogue/epilogue.h"

namespace quern::kernels {

/// Forward or dgrad: destination = Σ over taps of source · weight (axis.h).
struct TapConv {
  Axis y, x;
  int64_t images, groups;
  int64_t source_channels, output_channels;  // of a group
  int64_t kernel_rows, kernel_columns;       // of taps that are products of their own
  /// A row of taps is one product over kw·source_channels consecutive items: for few source
  /// channels. Padding k reads on into the next pixels, which meet zero weights; a NaN or infinity
  /// there reaches outputs that are so much further to the left.
  bool kw_in_k;
  DType dtype;
  MemoryFormat format;
  int64_t source_gap, output_gap;  // ConvProblem's x_gap and y_gap

  int64_t kernel_taps() const { return kernel_rows * kernel_columns; }
  /// Length of one product before padding.
  int64_t k() const;
};
TapConv forward_taps(const ConvProblem& problem);
TapConv dgrad_taps(const ConvProblem& problem);

/// The packed weight is [group][panel of nr output channels][term][tap][k/kr][nr][kr].
int64_t packed_weight_bytes(const ConvPlan& plan);
void pack_weight(const ConvPlan& plan, const void* weight, void* packed);

void run_taps(const ConvPlan& plan, const TapConv& conv, const void* source, const void* packed,
              const ChannelMap& map, const Epilogue& epilogue, void* output);

}  // namespace quern::kernels
