// What conv_kn2row decides without the operands.
#pragma once
#include <vector>

#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/conv.h"

namespace quern::kernels {

/// Forward, or dgrad, whose source is dy.
struct Kn2rowConv {
  Kn2rowConv(const ConvProblem& problem, ConvPass pass);

  Axis y, x;
  int64_t images, source_channels, output_channels;

  /// Of a plane of a row of the source, with padding.
  int64_t positions() const { return x.extent(x.longest_phase()); }
  /// What the outputs of a block of rows read; none if all is padding.
  Axis::Range source_rows(const Block& block) const;
};

/// Why it cannot compute this; null if it can. (Its why_not also tells where others are faster.)
const char* why_kn2row_cannot(const ConvProblem& problem, ConvPass pass, const GemmKernel& gemm);

class Kn2rowPlan final : public ConvPlan {
 public:
  explicit Kn2rowPlan(const ConvChoice& choice);
  /// The packed weight is [tap of y][tap of x][output channel][k], taps of x as below.
  int64_t packed_bytes() const override;
  void pack(const void* weight, DType of_weight, void* packed) const override;

  struct TapOfX {
    Tap tap;
    Phase phase;
  };

  const Kn2rowConv conv;
  const ImageStrides source_strides, out_strides;
  const std::vector<TapOfX> taps;  // of all phases, by plane
  const int64_t panels;            // of a plane of a row
  const int64_t z_pitch;
  const BlockGrid grid;
  const int64_t most_source_rows;  // of a block

  /// Of `taps`, those of planes before this one.
  int64_t taps_before(int64_t plane) const;
  /// Of Z for a row of outputs.
  int64_t z_rows() const { return static_cast<int64_t>(taps.size()) * conv.output_channels; }
  int64_t z_items() const { return z_rows() * z_pitch; }
  /// Of the panels of a row of the source.
  int64_t row_items() const;
  /// Of a block.
  int64_t most_rows() const { return grid.block_rows * conv.y.phases(); }

 private:
  void compute(const void* source, const void* packed, void* output, const Epilogue& epilogue,
               const ChannelMap& map) const override;
};

}  // namespace quern::kernels
