// Packing the weight for forward and dgrad.
#include <algorithm>
#include <cstddef>

#include "quern/ops/kernels/conv/brgemm.h"
#include "quern/ops/kernels/gemm/gemm_registry.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// B of forward is [input channel][output channel], of dgrad its transpose.
struct WeightMatrix {
  TapConv conv;
  int64_t k_stride, n_stride;  // between channels of the source, of the output
  int64_t group_stride;

  explicit WeightMatrix(const ConvPlan& plan)
      : conv(plan.pass == ConvPass::dgrad ? dgrad_taps(plan.problem) : forward_taps(plan.problem)),
        k_stride(plan.problem.kh * plan.problem.kw),
        n_stride(plan.problem.ic / plan.problem.groups * k_stride),
        group_stride(plan.problem.oc / plan.problem.groups * n_stride) {
    if (plan.pass == ConvPass::dgrad) std::swap(k_stride, n_stride);
  }
};

}  // namespace

int64_t packed_weight_bytes(const ConvPlan& plan) {
  if (plan.pass == ConvPass::wgrad) return 0;
  const TapConv conv = WeightMatrix(plan).conv;
  return conv.groups * panel_count(*plan.gemm, conv.output_channels) * conv.kernel_taps() *
         panel_elements(*plan.gemm, conv.k()) * itemsize(plan.gemm->b);
}

void pack_weight(const ConvPlan& plan, const void* weight, void* packed) {
  const GemmKernel& gemm = *plan.gemm;
  const WeightMatrix matrix(plan);
  const TapConv& conv = matrix.conv;
  const int64_t item = itemsize(gemm.b), kw = plan.problem.kw;
  const int64_t panels = panel_count(gemm, conv.output_channels);
  const int64_t product = panel_elements(gemm, conv.k());  // items of one tap's panel
  const int64_t fold = conv.folded ? kw : 1;               // taps of one product

  // An item that is moved takes about as long as 16 multiplications.
  parallel_pieces(conv.groups * panels, 16 * conv.kernel_taps() * product, [&](int64_t cell) {
    const int64_t group = cell / panels, first = cell % panels * gemm.nr;
    const int64_t n = std::min<int64_t>(gemm.nr, conv.output_channels - first);
    const auto* from = static_cast<const std::byte*>(weight) +
                       (group * matrix.group_stride + first * matrix.n_stride) * item;
    auto* panel = static_cast<std::byte*>(packed) + cell * conv.kernel_taps() * product * item;
    std::fill_n(panel, conv.kernel_taps() * product * item, std::byte{});
    for (int64_t tap = 0; tap < conv.kernel_taps() * fold; ++tap)
      pack_panel_rows(gemm, from + tap * item, matrix.k_stride, matrix.n_stride,
                      conv.source_channels, n, tap % fold * conv.source_channels,
                      panel + tap / fold * product * item);
  });
}

}  // namespace quern::kernels
