#include "quern/ops/kernels/conv/taps/taps.h"

namespace quern::kernels {
namespace {

/// Below this many source channels a product per tap would be too short.
constexpr int64_t kFewChannels = 16;

bool few_channels(const ConvProblem& p) {
  return p.ic / p.groups < kFewChannels && p.kw > 1 && p.dilation_w == 1;
}

}  // namespace

int64_t TapConv::k() const { return kw_in_k ? source_channels * (x.reach + 1) : source_channels; }

TapConv forward_taps(const ConvProblem& problem) {
  const ConvProblem p = linearised(problem);
  const bool kw_in_k = few_channels(p);
  return {.y = forward_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h),
          .x = kw_in_k ? plain_forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w)
                       : forward_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w),
          .images = p.n,
          .groups = p.groups,
          .source_channels = p.ic / p.groups,
          .output_channels = p.oc / p.groups,
          .kernel_rows = p.kh,
          .kernel_columns = kw_in_k ? 1 : p.kw,
          .kw_in_k = kw_in_k,
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
          .kw_in_k = false,
          .dtype = p.dtype,
          .format = p.format,
          .source_gap = 0,
          .output_gap = 0};
}

}  // namespace quern::kernels
