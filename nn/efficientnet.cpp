#include "quern/nn/efficientnet.h"

#include <cmath>
#include <numeric>

#include "quern/nn/detail/efficientnet_stages.h"
#include "quern/nn/init.h"
#include "quern/nn/linear.h"
#include "quern/ops/activation.h"

namespace quern::nn {
namespace {

using namespace efficientnet;

ConvNormOptions layer(bool fuse, int64_t stride = 1, int64_t groups = 1,
                      Activation activation = Activation::silu) {
  return {.stride = stride, .groups = groups, .activation = activation, .fuse = fuse};
}

struct Block : InvertedResidual {
  Block(int64_t inputs, const Stage& stage, int64_t stride, double depth, bool fuse)
      : InvertedResidual(fuse) {
    Sequential& layers = register_module("block", Sequential());
    const int64_t inner = inputs * stage.expansion;
    if (inner != inputs) add(layers, inputs, inner, 1, layer(fuse));
    add(layers, inner, inner, stage.kernel, layer(fuse, stride, inner));
    squeeze(layers.add(SqueezeExcitation(inner, std::max<int64_t>(1, inputs / 4), silu, sigmoid)));
    add(layers, inner, stage.outputs, 1, layer(fuse, 1, 1, Activation::none));
    connect(stride == 1 && inputs == stage.outputs, depth);
  }
};

Sequential features(const EfficientNetOptions& options) {
  Sequential layers(ConvNormActivation(3, kStem, 3, layer(options.fuse, 2)));
  int64_t inputs = kStem, block = 0;
  const auto blocks = static_cast<double>(
      std::accumulate(std::begin(kStages), std::end(kStages), int64_t{0},
                      [](int64_t sum, const Stage& stage) { return sum + stage.depth; }));
  for (const Stage& stage : kStages) {
    Sequential& all = layers.add(Sequential());
    for (int64_t i = 0; i < stage.depth; ++i, ++block) {
      const double depth = options.stochastic_depth * static_cast<double>(block) / blocks;
      all.add(Block(inputs, stage, i == 0 ? stage.stride : 1, depth, options.fuse));
      inputs = stage.outputs;
    }
  }
  layers.add(ConvNormActivation(inputs, kHead, 1, layer(options.fuse)));
  return layers;
}

}  // namespace

EfficientNet::EfficientNet(const EfficientNetOptions& options)
    : ImageClassifier(features(options),
                      Sequential(Dropout(options.dropout), Linear(kHead, options.num_classes))) {
  initialise();
  const double bound = 1 / std::sqrt(static_cast<double>(options.num_classes));
  init::uniform_(static_cast<Linear&>(classifier_[1]).weight, -bound, bound);
}

}  // namespace quern::nn
