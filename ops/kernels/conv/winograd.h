// What the parts of conv_winograd share.
#pragma once
#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/conv/conv.h"

namespace quern::kernels {

inline constexpr int64_t kWinogradPoints = 16;

/// Forward or dgrad as a 3×3 convolution with stride 1: dx is one of dy with the filters turned by
/// 180° and transposed.
struct WinogradConv {
  /// Of whole tiles: outputs are rounded up to even, those beyond the end read padding.
  Axis y, x;
  int64_t images, height, width;  // of the output
  int64_t source_channels, output_channels;

  explicit WinogradConv(const ConvProblem& problem, ConvPass pass);
  int64_t tile_rows() const { return (height + 1) / 2; }
  int64_t tile_columns() const { return (width + 1) / 2; }
};

/// Why conv_winograd cannot compute it; null if it can. (Its why_not also tells where others are faster.)
const char* why_winograd_cannot(const ConvProblem& problem, ConvPass pass, const GemmKernel& gemm);

/// The packed weight is [panel of nr output channels][point][source channel][nr].
int64_t packed_winograd_bytes(const ConvPlan& plan);
void pack_winograd(const ConvPlan& plan, const void* weight, void* packed);

void run_winograd_wgrad(const ConvPlan& plan, const void* x, const void* dy, void* dw,
                        const SourceMap& map);

}  // namespace quern::kernels
