// conv_depthwise: convolutions with a filter for each channel, or in groups of few channels,
// depthwise_kernel.h.
#include <algorithm>

#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

const char* why_not(const ConvProblem& p, ConvPass, const GemmKernel&) {
  if (p.groups == 1 || p.ic != p.oc) return "it is not in groups with as many outputs as inputs";
  if (p.groups != p.ic && !takes_group(p.ic / p.groups))
    return "groups are not of 2, 4 or 8 channels";
  if (p.dtype == DType::f64) return "f64 is computed by the definition";
  // The most that one row of outputs takes of scratch, in panels of up to 64 channels; divided,
  // since the product may overflow.
  constexpr int64_t largest = int64_t{256} << 20;
  const int64_t rows = (p.kh - 1) * p.dilation_h + 2;
  if (std::max(p.iw, p.ow) > largest / 256 / rows)
    return "scratch for one row of outputs is over 256 MiB";
  return nullptr;
}

class DepthwisePlan final : public ConvPlan {
 public:
  explicit DepthwisePlan(const ConvChoice& choice) : ConvPlan(choice) {}

  /// [tap][channel of the group][channel], f32.
  int64_t packed_bytes() const override {
    const ConvProblem& p = problem;
    if (pass == ConvPass::wgrad) return 0;
    return p.kh * p.kw * (p.ic / p.groups) * padded_channels(p.oc) *
           static_cast<int64_t>(sizeof(float));
  }
  void pack(const void* weight, DType of_weight, void* packed) const override {
    const ConvProblem& p = problem;
    const int64_t taps = p.kh * p.kw, group = p.ic / p.groups, pitch = padded_channels(p.oc);
    const Workspace wide(p.oc * group * taps * static_cast<int64_t>(sizeof(float)));
    widen(weight, of_weight, wide.as<float>());
    float* to = static_cast<float*>(packed);
    if (p.oc < pitch) std::fill_n(to, taps * group * pitch, 0.0f);
    for (int64_t i = 0; i < group; ++i)
      copy_matrix(sizeof(float), wide.as<float>() + i * taps, 1, group * taps, to + i * pitch,
                  group * pitch, taps, p.oc);
  }

 private:
  /// In f32: the weight [channel][channel of the group][tap], for dgrad with channels of a group
  /// exchanged, rounded as the problem wants it.
  void widen(const void* weight, DType of_weight, float* to) const {
    const ConvProblem& p = problem;
    const int64_t taps = p.kh * p.kw, group = p.ic / p.groups;
    for (int64_t c = 0; c < p.oc; ++c)
      for (int64_t i = 0; i < group; ++i, to += taps) {
        const int64_t first = c - c % group;
        const int64_t at =
            pass == ConvPass::dgrad ? (first + i) * group + c % group : c * group + i;
        const auto* singles = static_cast<const float*>(weight) + at * taps;
        if (of_weight == DType::bf16)
          std::copy_n(static_cast<const bfloat16*>(weight) + at * taps, taps, to);
        else if (p.dtype == DType::bf16)
          std::transform(singles, singles + taps, to,
                         [](float v) { return static_cast<float>(bfloat16(v)); });
        else std::copy_n(singles, taps, to);
      }
  }
  void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
               const ChannelMap& prologue) const override {
    if (pass == ConvPass::wgrad) run_depthwise_wgrad(*this, from, with, to, prologue);
    else run_depthwise(*this, from, with, prologue, epilogue, to);
  }
};

constexpr ConvKernel kRecords[] = {
    {.name = "depthwise",
     .why_not = why_not,
     .plan = make_conv_plan<DepthwisePlan>,
     .on_micro_kernels = false},
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
