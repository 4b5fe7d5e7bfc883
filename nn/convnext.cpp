#include "quern/nn/convnext.h"

#include <algorithm>

#include "quern/nn/activation.h"
#include "quern/nn/by_slab.h"
#include "quern/nn/conv2d.h"
#include "quern/nn/dropout.h"
#include "quern/nn/flatten.h"
#include "quern/nn/init.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/binary.h"
#include "quern/ops/convert.h"
#include "quern/ops/permute.h"

namespace quern::nn {
namespace {

/// [N, C, H, W] of channels_last as the rows [N, H, W, C] that it is, and back.
struct ToRows : Module {
  Tensor forward(const Tensor& x) override {
    return permute(contiguous(x, MemoryFormat::channels_last), {0, 2, 3, 1});
  }
};
struct FromRows : Module {
  Tensor forward(const Tensor& x) override { return permute(x, {0, 3, 1, 2}); }
};

struct Block : Module {
  Block(int64_t width, double depth, double scale)
      : block(register_module(
            "block", Sequential(Conv2d(width, width, 7, {.padding = 3, .groups = width}), ToRows(),
                                LayerNorm({width}, 1e-6), Linear(width, 4 * width), GELU(),
                                Linear(4 * width, width), FromRows()))),
        layer_scale(register_parameter("layer_scale", full({width, 1, 1}, scale))),
        stochastic_depth(register_module("stochastic_depth", StochasticDepth(depth))) {}

  Tensor forward(const Tensor& x) override { return x + stochastic_depth(layer_scale * block(x)); }

  Sequential& block;
  Tensor layer_scale;
  StochasticDepth& stochastic_depth;
};

struct Stage {
  int64_t width, depth;
};
constexpr Stage kStages[] = {{96, 3}, {192, 3}, {384, 9}, {768, 3}};
constexpr int64_t kBlocks = 18, kHead = 768;

Sequential features(const ConvNeXtOptions& options) {
  Sequential layers;
  int64_t inputs = 3, block = 0;
  for (const auto& [width, depth] : kStages) {
    // A patch of 4×4 pixels each at first, of 2×2 after that.
    if (inputs == 3)
      layers.add(Sequential(Conv2d(inputs, width, 4, {.stride = 4}), LayerNorm2d(width)));
    else layers.add(Sequential(LayerNorm2d(inputs), Conv2d(inputs, width, 2, {.stride = 2})));
    Sequential& all = layers.add(Sequential());
    for (int64_t i = 0; i < depth; ++i, ++block)
      all.add(Block(width, options.stochastic_depth * static_cast<double>(block) / (kBlocks - 1),
                    options.layer_scale));
    inputs = width;
  }
  return layers;
}

}  // namespace

Tensor LayerNorm2d::forward(const Tensor& x) {
  check(x.defined() && x.dim() == 4, "LayerNorm2d", "input: expected [N,{},H,W], got {}",
        weight.numel(), x);
  return FromRows()(LayerNorm::forward(ToRows()(x)));
}

ConvNeXt::ConvNeXt(const ConvNeXtOptions& options)
    : features_(register_module("features", features(options))),
      classifier_(register_module("classifier", Sequential(LayerNorm2d(kHead), Flatten(),
                                                           Linear(kHead, options.num_classes)))) {
  // torchvision's trunc_normal_ cuts at 2, a hundred deviations away.
  for (auto& [name, module] : named_modules()) {
    const auto draw = [](const Tensor& weight, const Tensor& bias) {
      init::normal_(weight, 0, 0.02);
      init::constant_(bias, 0);
    };
    if (auto* c = dynamic_cast<Conv2d*>(module)) draw(c->weight, c->bias);
    if (auto* l = dynamic_cast<Linear*>(module)) draw(l->weight, l->bias);
  }
}

Tensor ConvNeXt::forward(const Tensor& x) {
  // 4·96 channels of a sixteenth of the pixels, between the two linears of a block.
  return by_slab(*this, x, 24, [&](const Tensor& images) {
    const bool image = images.defined() && images.dim() == 4;
    const Tensor y = features_(image ? contiguous(images, MemoryFormat::channels_last) : images);
    return classifier_(adaptive_avg_pool2d(y, 1));
  });
}

}  // namespace quern::nn
