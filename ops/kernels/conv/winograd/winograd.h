// What the parts of conv_winograd and conv_winograd_4x4 share.
#pragma once
#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/blocks.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/conv/winograd/winograd_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// The best transforms for this size of tiles.
inline const WinogradTransforms& select_winograd_transforms(int64_t tile) {
  const WinogradKernel& kernel =
      *select<WinogradKernel>("winograd", [](const auto&) { return true; });
  return tile == 4 ? kernel.f4 : kernel.f2;
}

/// Forward or dgrad as a 3×3 convolution with stride 1: dx is one of dy with the filters turned by
/// 180° and transposed.
struct WinogradConv {
  int64_t tile;  // outputs of one, in each direction
  /// Of whole tiles: outputs are rounded up to their multiple, those beyond the end read padding.
  Axis y, x;
  int64_t images, height, width;  // of the output
  int64_t source_channels, output_channels;

  WinogradConv(const ConvProblem& problem, ConvPass pass, int64_t tile);
  int64_t tile_rows() const { return (height + tile - 1) / tile; }
  int64_t tile_columns() const { return (width + tile - 1) / tile; }
  int64_t points() const { return (tile + 2) * (tile + 2); }
};

/// Why they cannot compute it; null if they can. (Their why_not also tells where others are
/// faster.)
const char* why_winograd_cannot(const ConvProblem& problem, ConvPass pass, const GemmKernel& gemm);

/// Forward or dgrad. Pitches count floats.
class WinogradPlan final : public ConvPlan {
 public:
  WinogradPlan(const ConvChoice& choice, int64_t tile);
  /// The packed weight is [panel of nr output channels][point][source channel][nr].
  int64_t packed_bytes() const override;
  void pack(const void* weight, DType of_weight, void* packed) const override;

  const WinogradConv conv;
  const WinogradTransforms& transforms;
  const ImageStrides source_strides, out_strides;
  const int64_t pitch;      // of a tile in V, of a pixel in scratch
  const int64_t out_pitch;  // of a tile in M
  const int64_t panels;
  const BlockGrid grid;  // of rows of tiles
  const int64_t parts;   // of the panels

  int64_t tiles(int64_t rows) const { return rows * conv.tile_columns(); }
  int64_t tiles(const Block& block) const { return tiles(block.images * block.rows); }

 private:
  void compute(const void* source, const void* packed, void* output, const Epilogue& epilogue,
               const ChannelMap& map) const override;
};

std::unique_ptr<const ConvPlan> plan_winograd_wgrad(const ConvChoice& choice);

}  // namespace quern::kernels
