// conv_chain in evaluation: a batch norm by running statistics is a factor and a summand a channel.
// They stay in f32 and are applied to the sums of the convolution before they are rounded, so that
// the packed weights are those of conv2d, and a changed statistic costs no packing.
#include <utility>

#include "quern/ops/fused/conv_stage.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace kernels;
using namespace detail;
using enum ConvChain::Shortcut;

ConvPlan plan_of(const ConvStage& stage, const Shape& x, DType dtype) {
  return conv_plan(problem_of(stage, x, dtype), ConvPass::forward);
}

/// Of its y; with a gap after each row and before the first, these are zeros.
Tensor room_for(const ConvProblem& p) {
  if (p.y_gap == 0) return empty(output_shape(p), p.dtype, p.format);
  const int64_t pixel = p.oc, row = (p.ow + p.y_gap) * pixel, gap = p.y_gap * pixel;
  const Tensor all = empty({p.n * p.oh * row + gap}, p.dtype);
  raw::fill_(raw::as_strided(all, {p.n * p.oh + 1, gap}, {row, 1}, 0), 0);
  return raw::as_strided(all, output_shape(p), {p.oh * row, 1, row, pixel}, gap);
}

/// relu(batch_norm(conv(x)) + residual) to y.
void run(const ConvPlan& plan, const ConvStage& stage, const Tensor& x, const Tensor& y,
         ForwardFusion finish) {
  const EvaluationNorm norm(norm_of(stage), plan.problem.dtype);
  finish.scale = norm.scale(), finish.shift = norm.shift();
  conv_forward(plan, x.raw(), PackedWeight(plan, stage.weight).data(), y.raw(), finish);
}

}  // namespace

Tensor detail::conv_chain_eval(const Tensor& x_any, const ConvChain& chain) {
  const Tensor x = raw::contiguous(x_any, MemoryFormat::channels_last);
  Tensor y = x;
  ConvPlan plan = plan_of(chain.stages[0], x.shape(), x.dtype());
  for (size_t i = 0; i + 1 < chain.stages.size(); ++i) {
    ConvPlan next = plan_of(chain.stages[i + 1], output_shape(plan.problem), x.dtype());
    // Written with the zeros that a 3×3 needs around it, and so not copied (inference of ResNet-50 in bf16,
    // Zen 5: 1 to 2%).
    if (plan.kernel->wanted_gap) plan.problem.y_gap = next.problem.x_gap = next.wanted_gap();
    const Tensor input = std::exchange(y, room_for(plan.problem));
    run(plan, chain.stages[i], input, y, {.relu = true});
    plan = next;
  }
  // The projection's place is that of the sum: the last stage adds to what it finds there.
  const Tensor out = empty(output_shape(plan.problem), x.dtype(), MemoryFormat::channels_last);
  if (chain.shortcut == projection)
    run(plan_of(chain.projection, x.shape(), x.dtype()), chain.projection, x, out, {});
  const void* residual = chain.shortcut == none         ? nullptr
                         : chain.shortcut == projection ? out.raw()
                                                        : x.raw();
  run(plan, chain.stages.back(), y, out, {.residual = residual, .relu = true});
  return raw::contiguous(out, x_any.format());
}

}  // namespace quern
