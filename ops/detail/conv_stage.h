// What the ways of conv_chain share: a stage as the problems that its two ops are; the ways.
#pragma once
#include "quern/ops/detail/channel_norm.h"
#include "quern/ops/detail/conv_problem.h"
#include "quern/ops/fused/conv_chain.h"

namespace quern::detail {

inline BatchNorm norm_of(const ConvStage& s) {
  return {s.running_mean, s.running_var, s.bn_weight, s.bn_bias, s.momentum, s.eps};
}

/// On an x of this shape and dtype, in channels_last. Errors: conv_problem's.
inline kernels::ConvProblem problem_of(const ConvStage& s, const Shape& x, DType dtype) {
  return conv_problem(x, dtype, MemoryFormat::channels_last, s.weight, s.stride, s.padding, 1,
                      s.groups);
}

// The ways of conv_chain; their arguments have been checked.

/// One autograd node, with a gate two; `recorded`: there will be one, some gradient is wanted. Only
/// the last stage may have a gate.
Tensor conv_chain_train(const Tensor& x, const ConvChain& chain, bool recorded);
/// By the running statistics, which become the epilogues of the convolutions. Records nothing.
Tensor conv_chain_eval(const Tensor& x, const ConvChain& chain);
/// How many of them there are up to the first that has a gate, with it; all, if none has.
size_t stages_to_gate(std::span<const ConvStage> stages);
/// What the stage's gate makes of these means. Error: of another shape or dtype.
Tensor gate_factors(const ConvStage& stage, const Tensor& means);
/// op by op
Tensor conv_chain_composed(const Tensor& x, const ConvChain& chain, bool training);

}  // namespace quern::detail
