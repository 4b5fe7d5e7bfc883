// conv_depthwise: convolutions with a filter for each channel, or in groups of few channels,
// depthwise_kernel.h.
#include <algorithm>

#include "quern/ops/kernels/conv/depthwise/depthwise.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

const char* why_not(const ConvProblem& p, ConvPass, const GemmKernel& gemm) {
  if (p.groups == 1 || p.ic != p.oc) return "it is not in groups with as many outputs as inputs";
  if (p.dtype == DType::f64) return "f64 is computed by the definition";
  const int64_t group = p.ic / p.groups;
  if (group > 1 && !select_depthwise_kernel(p.dtype).takes_group(group))
    return "groups are not of 2, 4 or 8 channels, nor of 16 that come in pairs";
  if (group == 16 && gemm.isa == Isa::amx)
    return "groups of 16 channels are faster as products of matrices";
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

  /// [tap][step][channel], floats or pairs of bf16 (depthwise_kernel.h).
  int64_t packed_bytes() const override {
    const ConvProblem& p = problem;
    if (pass == ConvPass::wgrad) return 0;
    return p.kh * p.kw * steps() * padded_channels(p.oc) * static_cast<int64_t>(sizeof(float));
  }
  void pack(const void* weight, DType of_weight, void* packed) const override {
    const ConvProblem& p = problem;
    const int64_t taps = p.kh * p.kw, group = p.ic / p.groups, pitch = padded_channels(p.oc);
    const Workspace wide(p.oc * group * taps * static_cast<int64_t>(sizeof(float)));
    widen(weight, of_weight, wide.as<float>());
    if (steps() < group) pair(wide.as<uint32_t>());
    float* to = static_cast<float*>(packed);
    if (p.oc < pitch) std::fill_n(to, taps * steps() * pitch, 0.0f);
    for (int64_t i = 0; i < steps(); ++i)
      copy_matrix(sizeof(float), wide.as<float>() + i * taps, 1, steps() * taps, to + i * pitch,
                  steps() * pitch, taps, p.oc);
  }

 private:
  int64_t steps() const {
    return select_depthwise_kernel(problem.dtype).steps(problem.ic / problem.groups);
  }
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
  /// [channel][channel of the group][tap], floats that are bf16, to [channel][pair][tap] in place.
  void pair(uint32_t* weight) const {
    const int64_t taps = problem.kh * problem.kw;
    for (int64_t i = 0; i < problem.oc * steps(); ++i)
      for (int64_t t = 0; t < taps; ++t) {
        const uint32_t *first = weight + 2 * i * taps + t, *second = first + taps;
        weight[i * taps + t] = *first >> 16 | (*second & 0xffff0000);
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
