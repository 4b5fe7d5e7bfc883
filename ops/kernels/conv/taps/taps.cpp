#include "quern/ops/kernels/conv/taps/taps.h"

namespace quern::kernels {
namespace {

/// Below this many source channels a product per tap would be too short.
constexpr int64_t kFoldBelow = 16;

bool folds(const ConvProblem& p) {
  return p.ic / p.groups < kFoldBelow && p.kw > 1 && p.dilation_w == 1;
}

}  // namespace

int64_t TapConv::k() const { return folded ? source_channels * (x.reach + 1) : source_channels; }

TapConv forward_taps(const ConvProblem& problem) {
  const ConvProblem p = linearised(problem);
  const bool fold = folds(p);
  return {.y = forward_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = fold ? plain_forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w)
                    : forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.ic / p.groups,
          .output_channels = p.oc / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = fold ? 1 : p.kw,
          .folded = fold,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = p.x_gap,
          .output_gap = p.y_gap};
}

TapConv dgrad_taps(const ConvProblem& problem) {
  const ConvProblem p = linearised(problem);
  return {.y = dgrad_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = dgrad_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.oc / p.groups,
          .output_channels = p.ic / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = p.kw,
          .folded = false,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = 0,
          .output_gap = 0};
}

}  // namespace quern::kernels
