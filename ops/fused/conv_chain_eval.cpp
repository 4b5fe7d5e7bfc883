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

Tensor output_of(const ConvStage& stage, const Tensor& x) {
  const ConvProblem p = problem_of(stage, x.shape(), x.dtype());
  return empty(output_shape(p), p.dtype, p.format);
}

/// y = stage(x), and what else `finish` asks for.
void run(const ConvStage& stage, const Tensor& x, const Tensor& y, ForwardFusion finish) {
  const ConvPlan plan = plan_conv(problem_of(stage, x.shape(), x.dtype()), ConvPass::forward);
  const EvaluationNorm norm(norm_of(stage), x.dtype());
  finish.scale = norm.scale.raw(), finish.shift = norm.shift.raw();
  conv_forward(plan, x.raw(), PackedWeight(plan, stage.weight).data(), y.raw(), finish);
}

}  // namespace

Tensor detail::conv_chain_eval(const Tensor& x_any, const ConvChain& chain) {
  const Tensor x = raw::contiguous(x_any, MemoryFormat::channels_last);
  Tensor y = x;
  for (const ConvStage& stage : chain.stages.first(chain.stages.size() - 1)) {
    const Tensor next = output_of(stage, y);
    run(stage, y, next, {.relu = true});
    y = next;
  }
  const Tensor out = output_of(chain.stages.back(), y);
  // The projection's place is that of the sum: the last stage adds to what it finds there.
  if (chain.shortcut == projection) run(chain.projection, x, out, {});
  const void* residual = chain.shortcut == none         ? nullptr
                         : chain.shortcut == projection ? out.raw()
                                                        : x.raw();
  run(chain.stages.back(), y, out, {.residual = residual, .relu = true});
  return raw::contiguous(out, x_any.format());
}

}  // namespace quern
