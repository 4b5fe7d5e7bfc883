#include "quern/nn/inverted_residual.h"

#include <algorithm>

#include "quern/nn/by_slab.h"
#include "quern/nn/init.h"
#include "quern/nn/linear.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/binary.h"
#include "quern/ops/convert.h"
#include "quern/ops/flatten.h"

namespace quern::nn {

int64_t round_channels(double channels) {
  const int64_t rounded = std::max<int64_t>(8, static_cast<int64_t>(channels + 4) / 8 * 8);
  return static_cast<double>(rounded) < 0.9 * channels ? rounded + 8 : rounded;
}

ConvNormActivation::ConvNormActivation(int64_t inputs, int64_t outputs, int64_t kernel,
                                       const ConvNormOptions& o) {
  Conv2d& conv = register_module(
      "0",
      Conv2d(inputs, outputs, kernel,
             {.stride = o.stride, .padding = (kernel - 1) / 2, .groups = o.groups, .bias = false}));
  BatchNorm2d& norm = register_module("1", BatchNorm2d(outputs, o.eps, o.momentum));
  residual_ = {
      .branch = {{&conv, &norm, o.activation, conv.name()}}, .shortcut = false, .fuse = o.fuse};
}

SqueezeExcitation::SqueezeExcitation(int64_t channels, int64_t squeezed, Function activation,
                                     Function scale)
    : fc1_(register_module("fc1", Conv2d(channels, squeezed, 1))),
      fc2_(register_module("fc2", Conv2d(squeezed, channels, 1))),
      activation_(activation),
      scale_(scale) {}

Tensor SqueezeExcitation::forward(const Tensor& x) {
  return x * factors(adaptive_avg_pool2d(x, 1));
}

Tensor SqueezeExcitation::factors(const Tensor& means) {
  return scale_(fc2_(activation_(fc1_(means))));
}

void InvertedResidual::connect(bool shortcut, double depth) {
  branch_.shortcut = shortcut;
  for (const auto& [name, module] : named_modules())
    for (ConvNorm& layer : branch_.branch)
      if (layer.conv == module) layer.name = name;
  if (depth > 0) depth_ = &register_module("stochastic_depth", StochasticDepth(depth));
}

void InvertedResidual::squeeze(SqueezeExcitation& module) {
  branch_.branch.back().gate = [&module](const Tensor& means) {
    const Span span = Span::of_module(module.name());
    return module.factors(means);
  };
}

Tensor InvertedResidual::forward(const Tensor& x) {
  if (!branch_.shortcut || !depth_ || !depth_->drops()) return branch_(x);
  Residual branch = branch_;
  branch.shortcut = false;
  return (*depth_)(branch(x)) + x;
}

ImageClassifier::ImageClassifier(Sequential features, Sequential classifier)
    : features_(register_module("features", std::move(features))),
      classifier_(register_module("classifier", std::move(classifier))) {}

void ImageClassifier::initialise() {
  for (auto& [name, module] : named_modules()) {
    if (auto* c = dynamic_cast<Conv2d*>(module)) {
      init::kaiming_normal_(c->weight, {.fan = init::Fan::out});
      if (c->bias.defined()) init::constant_(c->bias, 0);
    }
    if (auto* l = dynamic_cast<Linear*>(module)) {
      init::normal_(l->weight, 0, 0.01);
      init::constant_(l->bias, 0);
    }
  }
}

Tensor ImageClassifier::forward(const Tensor& x) {
  // As many as 96 channels of a quarter of the pixels, in a block that expands.
  return by_slab(*this, x, 24, [&](const Tensor& images) {
    // Fused chains compute in channels_last: better three channels are reordered than each block's.
    const bool image = images.defined() && images.dim() == 4;
    const Tensor y = features_(image ? contiguous(images, MemoryFormat::channels_last) : images);
    return classifier_(flatten(adaptive_avg_pool2d(y, 1), 1));
  });
}

}  // namespace quern::nn
