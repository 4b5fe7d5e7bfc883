#include "quern/ops/fused/conv_chain.h"

#include <algorithm>

#include "quern/autograd/grad_mode.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/autocast.h"
#include "quern/ops/batch_norm.h"
#include "quern/ops/binary.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/detail/conv_stage.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

constexpr std::string_view kOp = "conv_chain";
using enum ConvChain::Shortcut;

/// The shape of what the stage makes of an x of the shape `input`.
Shape check_stage(const ConvStage& stage, const Tensor& x, const Shape& input, bool training) {
  detail::check_conv_operands(x, stage.weight);
  const Shape output = detail::output_shape(detail::problem_of(stage, input, x.dtype()));
  detail::check_batch_norm(detail::norm_of(stage), output, x.dtype(), training);
  return output;
}

void check_chain(const Tensor& x, const ConvChain& chain, bool training) {
  check(!chain.stages.empty(), kOp, "stages: expected at least one, got none");
  detail::check_conv_operands(x, chain.stages[0].weight);
  Shape shape = check_stage(chain.stages[0], x, x.shape(), training);
  for (const ConvStage& stage : chain.stages.subspan(1))
    shape = check_stage(stage, x, shape, training);
  if (chain.shortcut == none) return;
  check(!chain.stages.back().gate, kOp, "shortcut: expected none beside a gate of the last stage");
  const Shape shortcut = chain.shortcut == identity
                             ? x.shape()
                             : check_stage(chain.projection, x, x.shape(), training);
  check(shortcut == shape, kOp, "shortcut: expected the shape of the branch, {}, got {}", shape,
        shortcut);
}

Tensor composed(const ConvStage& s, const Tensor& x, bool training) {
  return batch_norm(conv2d(x, s.weight, {}, s.stride, s.padding, 1, s.groups), s.running_mean,
                    s.running_var, s.bn_weight, s.bn_bias, training, s.momentum, s.eps);
}

/// Does any of them want a gradient?
bool recorded(const Tensor& x, const ConvChain& chain) {
  const auto wants = [](const ConvStage& s) {  // a gate: what it keeps is not known
    return s.gate || s.weight.requires_grad() || s.bn_weight.requires_grad() ||
           s.bn_bias.requires_grad();
  };
  return grad_enabled() && (x.requires_grad() || std::ranges::any_of(chain.stages, wants) ||
                            (chain.shortcut == projection && wants(chain.projection)));
}

Tensor gated(const Tensor& y, const ConvStage& stage) {
  if (!stage.gate) return y;
  return y * detail::gate_factors(stage, adaptive_avg_pool2d(y, 1));
}

Tensor with_shortcut(const Tensor& y, const Tensor& x, const ConvChain& chain, bool training) {
  if (chain.shortcut == none) return y;
  return y + (chain.shortcut == identity ? x : composed(chain.projection, x, training));
}

/// Up to the first gate, and then the rest, whose x is what that one leaves.
Tensor train(const Tensor& x, const ConvChain& chain) {
  const size_t first = detail::stages_to_gate(chain.stages);
  if (first == chain.stages.size()) {
    // Of a sum, backward keeps in bits which elements passed, and cannot make the others again.
    const bool keeps_bits =
        chain.shortcut == none || kernels::only_clamps(chain.stages.back().activation);
    if (!keeps_bits) return detail::conv_chain_composed(x, chain, true);
    return detail::conv_chain_train(x, chain, recorded(x, chain));
  }
  const Tensor gated = train(x, {.stages = chain.stages.first(first)});
  const auto after = chain.stages.subspan(first);
  CachedVector<ConvStage> rest(after.begin(), after.end());
  if (chain.shortcut != none) rest.back().activation = Activation::none;
  const Tensor y = with_shortcut(train(gated, {.stages = rest}), x, chain, true);
  return chain.shortcut == none ? y : activate(y, after.back().activation);
}

}  // namespace

size_t detail::stages_to_gate(std::span<const ConvStage> stages) {
  const auto gate = std::ranges::find_if(stages, [](const ConvStage& s) { return bool{s.gate}; });
  return gate == stages.end() ? stages.size() : static_cast<size_t>(gate - stages.begin()) + 1;
}

Tensor detail::gate_factors(const ConvStage& stage, const Tensor& means) {
  const Tensor factors = stage.gate(means);
  check(factors.defined() && factors.shape() == means.shape() && factors.dtype() == means.dtype(),
        kOp, "gate: expected factors {} {}, got {}", means.dtype(), means.shape(), factors);
  return factors;
}

Tensor detail::conv_chain_composed(const Tensor& x, const ConvChain& chain, bool training) {
  Tensor y = x;
  for (const ConvStage& stage : chain.stages) {
    y = composed(stage, y, training);
    if (&stage == &chain.stages.back()) y = with_shortcut(y, x, chain, training);
    y = gated(activate(y, stage.activation), stage);
  }
  return y;
}

Tensor conv_chain(const Tensor& x_any, const ConvChain& chain, bool training) {
  check_chain(x_any, chain, training);
  const Span span(kOp);
  const Tensor x = autocast::lower(x_any);
  if (training) return train(x, chain);
  return recorded(x, chain) ? detail::conv_chain_composed(x, chain, false)
                            : detail::conv_chain_eval(x, chain);
}

}  // namespace quern
