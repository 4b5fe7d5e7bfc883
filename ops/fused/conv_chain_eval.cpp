// conv_chain in evaluation: a batch norm by running statistics is a factor and a summand a channel.
// They stay in f32 and are applied to the sums of the convolution before they are rounded, so that
// the packed weights are those of conv2d, and a changed statistic costs no packing.
#include "quern/ops/fused/conv_stage.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
using enum ConvChain::Shortcut;

/// y = relu(batch_norm(conv(x)) + residual), into `y` if that is defined.
Tensor run(const ConvStage& stage, const Tensor& x, Tensor y, ForwardFusion finish) {
  const ConvProblem p = problem_of(stage, x.shape(), x.dtype());
  const ConvPlan plan = conv_plan(p, ConvPass::forward);
  const EvaluationNorm norm(norm_of(stage), p.dtype);
  if (!y.defined()) y = empty(output_shape(p), p.dtype, p.format);
  finish.scale = norm.scale.raw(), finish.shift = norm.shift.raw();
  conv_forward(plan, x.raw(), PackedWeight(plan, stage.weight).data(), y.raw(), finish);
  return y;
}

}  // namespace

Tensor detail::conv_chain_eval(const Tensor& x_any, const ConvChain& chain) {
  const Tensor x = raw::contiguous(x_any, MemoryFormat::channels_last);
  Tensor y = x;
  for (const ConvStage& stage : chain.stages.first(chain.stages.size() - 1))
    y = run(stage, y, {}, {.relu = true});
  // The projection's place is that of the sum: the last stage adds to what it finds there.
  const Tensor projected =
      chain.shortcut == projection ? run(chain.projection, x, {}, {}) : Tensor();
  const void* residual = chain.shortcut == none         ? nullptr
                         : chain.shortcut == projection ? projected.raw()
                                                        : x.raw();
  const Tensor out = run(chain.stages.back(), y, projected, {.residual = residual, .relu = true});
  return raw::contiguous(out, x_any.format());
}

}  // namespace quern
