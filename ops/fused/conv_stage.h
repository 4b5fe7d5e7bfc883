// What the ways of conv_chain share: a stage as the problems that its two ops are.
#pragma once
#include "quern/ops/channel_norm.h"
#include "quern/ops/conv_problem.h"
#include "quern/ops/fused/conv_chain.h"

namespace quern::detail {

inline BatchNorm norm_of(const ConvStage& s) {
  return {s.running_mean, s.running_var, s.bn_weight, s.bn_bias, s.momentum, s.eps};
}

/// On an x of this shape and dtype, in channels_last. Errors: conv_problem's.
inline kernels::ConvProblem problem_of(const ConvStage& s, const Shape& x, DType dtype) {
  return conv_problem(x, dtype, MemoryFormat::channels_last, s.weight, s.stride, s.padding, 1, 1);
}

}  // namespace quern::detail
