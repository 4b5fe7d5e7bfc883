#include "quern/nn/mobilenet_v2.h"

#include "quern/nn/linear.h"

namespace quern::nn {
namespace {

constexpr int64_t kStem = 32, kHead = 1280;

struct Block : InvertedResidual {
  Block(int64_t inputs, int64_t outputs, int64_t stride, int64_t expansion, bool fuse)
      : InvertedResidual(fuse) {
    const int64_t inner = inputs * expansion;
    Sequential& layers = register_module("conv", Sequential());
    const ConvNormOptions options{.activation = Activation::relu6, .fuse = fuse};
    if (expansion != 1) add(layers, inputs, inner, 1, options);
    ConvNormOptions depthwise = options;
    depthwise.stride = stride, depthwise.groups = inner;
    add(layers, inner, inner, 3, depthwise);
    Conv2d& project = layers.add(Conv2d(inner, outputs, 1, {.bias = false}));
    add({&project, &layers.add(BatchNorm2d(outputs)), Activation::none});
    connect(stride == 1 && inputs == outputs);
  }
};

Sequential features(bool fuse) {
  const ConvNormOptions options{.activation = Activation::relu6, .fuse = fuse};
  ConvNormOptions strided = options;
  strided.stride = 2;
  Sequential layers(ConvNormActivation(3, kStem, 3, strided));
  int64_t inputs = kStem;
  struct Stage {
    int64_t expansion, outputs, depth, stride;
  };
  for (const auto& [expansion, outputs, depth, stride] : {Stage{1, 16, 1, 1},
                                                          {6, 24, 2, 2},
                                                          {6, 32, 3, 2},
                                                          {6, 64, 4, 2},
                                                          {6, 96, 3, 1},
                                                          {6, 160, 3, 2},
                                                          {6, 320, 1, 1}})
    for (int64_t i = 0; i < depth; ++i) {
      layers.add(Block(inputs, outputs, i == 0 ? stride : 1, expansion, fuse));
      inputs = outputs;
    }
  layers.add(ConvNormActivation(inputs, kHead, 1, options));
  return layers;
}

}  // namespace

MobileNetV2::MobileNetV2(const MobileNetOptions& options)
    : ImageClassifier(features(options.fuse),
                      Sequential(Dropout(options.dropout), Linear(kHead, options.num_classes))) {
  initialise();
}

}  // namespace quern::nn
