#include "quern/nn/residual.h"

#include <algorithm>

#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/binary.h"
#include "quern/ops/fused/conv_chain.h"

namespace quern::nn {
namespace {

ConvStage stage_of(const ConvNorm& m) {
  return {.weight = m.conv->weight,
          .stride = m.conv->options.stride,
          .padding = m.conv->options.padding,
          .running_mean = m.norm->running_mean,
          .running_var = m.norm->running_var,
          .bn_weight = m.norm->weight,
          .bn_bias = m.norm->bias,
          .momentum = m.norm->momentum,
          .eps = m.norm->eps,
          .groups = m.conv->options.groups,
          .activation = m.activation,
          .gate = m.gate,
          .module = m.name};
}

/// All of them as one op, if that can do what they ask for: plain convolutions, norms of one mode.
std::optional<Tensor> fused(const Tensor& x, const Residual& residual) {
  CachedVector<ConvNorm> all(residual.branch.begin(), residual.branch.end());
  if (residual.projection) all.push_back(*residual.projection);
  const bool training = all[0].norm->is_training();
  const bool fits = std::ranges::all_of(all, [&](const ConvNorm& m) {
    const Conv2dOptions& conv = m.conv->options;
    return conv.dilation == 1 && !m.conv->bias.defined() && m.norm->is_training() == training;
  });
  if (!fits) return std::nullopt;

  using enum ConvChain::Shortcut;
  CachedVector<ConvStage> stages;
  stages.reserve(residual.branch.size());
  std::ranges::transform(residual.branch, std::back_inserter(stages), stage_of);
  ConvChain chain{.stages = stages,
                  .shortcut = residual.projection ? projection
                              : residual.shortcut ? identity
                                                  : none};
  if (residual.projection) chain.projection = stage_of(*residual.projection);
  const Tensor y = conv_chain(x, chain, training);
  if (training)
    for (const ConvNorm& m : all) m.norm->count_batch();
  return y;
}

}  // namespace

Tensor Residual::operator()(const Tensor& x) const {
  if (fuse)
    if (const auto y = fused(x, *this)) return *y;
  Tensor y = x;
  for (const ConvNorm& layer : branch) {
    y = layer(y);
    if (shortcut && &layer == &branch.back()) y = y + (projection ? (*projection)(x) : x);
    y = activate(y, layer.activation);
    if (layer.gate) y = y * layer.gate(adaptive_avg_pool2d(y, 1));
  }
  return y;
}

}  // namespace quern::nn
