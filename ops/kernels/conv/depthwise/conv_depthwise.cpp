// conv_depthwise: convolutions with a filter for each channel or several, or in groups of few
// channels, depthwise_kernel.h.
#include <algorithm>

#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

const char* why_not(const ConvProblem& p, ConvPass, const GemmKernel&) {
  if (p.groups == 1) return "it is not in groups";
  if (p.ic != p.oc && p.groups != p.ic) return "groups have not as many outputs as inputs";
  if (p.dtype == DType::f64) return "f64 is computed by the definition";
  const int64_t group = p.ic / p.groups;
  if (group > 8 || group & (group - 1)) return "groups are not of 1, 2, 4 or 8 channels";
  // The most that one row of outputs takes of scratch, in panels of up to 64 channels; divided,
  // since the product may overflow.
  const int64_t rows = (p.kh - 1) * p.dilation_h + 2;
  if (std::max(p.iw, p.ow) > cache::kMostScratch / 256 / rows)
    return "scratch for one row of outputs is over 256 MiB";
  return nullptr;
}

constexpr ConvKernel kRecords[] = {
    {.name = "depthwise",
     .why_not = why_not,
     .plan = make_conv_plan<DepthwisePlan>,
     .on_micro_kernels = false},
};

/// Along one axis.
Axis axis_of(ConvPass pass, int64_t input, int64_t output, int64_t kernel, int64_t stride,
             int64_t pad, int64_t dilation) {
  return (pass == ConvPass::dgrad ? dgrad_axis : forward_axis)(input, output, kernel, stride, pad,
                                                               dilation);
}
std::vector<Phase> phases_of(const Axis& axis) {
  std::vector<Phase> all;
  for (int64_t i = 0; i < axis.phases(); ++i) all.push_back(axis.phase(i));
  return all;
}

}  // namespace

DepthwisePlan::DepthwisePlan(const ConvChoice& choice)
    : ConvPlan(choice),
      kernel(select_depthwise_kernel(problem.dtype)),
      group(problem.ic / problem.groups),
      multiplier(problem.oc / problem.ic),
      taps(problem.kh * problem.kw),
      y(axis_of(pass, problem.ih, problem.oh, problem.kh, problem.stride_h, problem.pad_h,
                problem.dilation_h)),
      x(axis_of(pass, problem.iw, problem.ow, problem.kw, problem.stride_w, problem.pad_w,
                problem.dilation_w)),
      y_phases(phases_of(y)),
      x_phases(phases_of(x)),
      planes(suits_depthwise_planes(problem)) {}

int64_t DepthwisePlan::packed_bytes() const {
  if (pass == ConvPass::wgrad) return 0;
  return taps * steps() * padded_channels(problem.oc) * static_cast<int64_t>(sizeof(float));
}

void DepthwisePlan::pack(const void* weight, DType of_weight, void* packed) const {
  const int64_t channels = problem.oc, pitch = padded_channels(channels);
  const Workspace wide(channels * group * taps * static_cast<int64_t>(sizeof(float)));
  widen(weight, of_weight, wide.as<float>());
  if (steps() < group) pair(wide.as<uint32_t>());
  float* to = static_cast<float*>(packed);
  if (channels < pitch) std::fill_n(to, taps * steps() * pitch, 0.0f);
  for (int64_t i = 0; i < steps(); ++i)
    copy_matrix(sizeof(float), wide.as<float>() + i * taps, 1, steps() * taps, to + i * pitch,
                steps() * pitch, taps, channels);
}

/// In f32: the weight [channel][channel of the group][tap], for dgrad with channels of a group
/// exchanged, rounded as the problem wants it.
void DepthwisePlan::widen(const void* weight, DType of_weight, float* to) const {
  for (int64_t c = 0; c < problem.oc; ++c)
    for (int64_t i = 0; i < group; ++i, to += taps) {
      const int64_t first = c - c % group;
      const int64_t at = pass == ConvPass::dgrad ? (first + i) * group + c % group : c * group + i;
      const auto* singles = static_cast<const float*>(weight) + at * taps;
      if (of_weight == DType::bf16)
        std::copy_n(static_cast<const bfloat16*>(weight) + at * taps, taps, to);
      else if (problem.dtype == DType::bf16)
        std::transform(singles, singles + taps, to,
                       [](float v) { return static_cast<float>(bfloat16(v)); });
      else std::copy_n(singles, taps, to);
    }
}

/// [channel][channel of the group][tap], floats that are bf16, to [channel][pair][tap] in place.
void DepthwisePlan::pair(uint32_t* weight) const {
  for (int64_t i = 0; i < problem.oc * steps(); ++i)
    for (int64_t t = 0; t < taps; ++t) {
      const uint32_t *first = weight + 2 * i * taps + t, *second = first + taps;
      weight[i * taps + t] = *first >> 16 | (*second & 0xffff0000);
    }
}

void DepthwisePlan::compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
                            const ChannelMap& prologue) const {
  if (pass == ConvPass::wgrad) run_depthwise_wgrad(*this, from, with, to, prologue);
  else if (planes && is_plain(epilogue) && (pass == ConvPass::forward || multiplier == 1))
    run_depthwise_planes(*this, from, with, prologue, epilogue, to);
  else run_depthwise(*this, from, with, prologue, epilogue, to);
}

/// Where dgrad reads dy, and writes dx, where they lie.
bool DepthwisePlan::differentiates_at_once() const {
  return pass == ConvPass::dgrad && group == 1 && multiplier == 1 &&
         problem.format == MemoryFormat::channels_last && problem.oc >= kDepthwiseChannels &&
         std::ranges::all_of(x_phases, [](const Phase& phase) {
           return phase.taps <= 1 || (phase.taps <= kBackwardTaps && phase.offset_step == 1);
         });
}

void DepthwisePlan::compute_both(const void* dy, const void* packed, void* dx, void* dw,
                                 const Epilogue& epilogue) const {
  run_depthwise_backward(*this, dy, packed, dx, static_cast<float*>(dw), epilogue);
}

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
