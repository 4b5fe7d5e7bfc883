#include "quern/nn/mobilenet_v3.h"

#include "quern/nn/activation.h"
#include "quern/nn/linear.h"

namespace quern::nn {
namespace {

constexpr Activation kRelu = Activation::relu, kSwish = Activation::hardswish;

ConvNormOptions layer(Activation activation, bool fuse, int64_t stride = 1, int64_t groups = 1) {
  return {.stride = stride,
          .groups = groups,
          .activation = activation,
          .eps = 0.001,
          .momentum = 0.01,
          .fuse = fuse};
}

/// A row of the paper's table 1.
struct Row {
  int64_t kernel, inner, outputs;
  bool squeezes;
  Activation activation;
  int64_t stride;
};
constexpr Row kRows[] = {
    {3, 16, 16, false, kRelu, 1},   {3, 64, 24, false, kRelu, 2},   {3, 72, 24, false, kRelu, 1},
    {5, 72, 40, true, kRelu, 2},    {5, 120, 40, true, kRelu, 1},   {5, 120, 40, true, kRelu, 1},
    {3, 240, 80, false, kSwish, 2}, {3, 200, 80, false, kSwish, 1}, {3, 184, 80, false, kSwish, 1},
    {3, 184, 80, false, kSwish, 1}, {3, 480, 112, true, kSwish, 1}, {3, 672, 112, true, kSwish, 1},
    {5, 672, 160, true, kSwish, 2}, {5, 960, 160, true, kSwish, 1}, {5, 960, 160, true, kSwish, 1},
};
constexpr int64_t kStem = 16, kLast = 960, kHead = 1280;

struct Block : InvertedResidual {
  Block(int64_t inputs, const Row& row, bool fuse) : InvertedResidual(fuse) {
    Sequential& layers = register_module("block", Sequential());
    const int64_t inner = row.inner;
    if (inner != inputs) add(layers, inputs, inner, 1, layer(row.activation, fuse));
    add(layers, inner, inner, row.kernel, layer(row.activation, fuse, row.stride, inner));
    if (row.squeezes)
      squeeze(layers.add(SqueezeExcitation(inner, round_channels(static_cast<double>(inner / 4)),
                                           relu, hardsigmoid)));
    add(layers, inner, row.outputs, 1, layer(Activation::none, fuse));
    connect(row.stride == 1 && inputs == row.outputs);
  }
};

Sequential features(bool fuse) {
  Sequential layers(ConvNormActivation(3, kStem, 3, layer(kSwish, fuse, 2)));
  int64_t inputs = kStem;
  for (const Row& row : kRows) {
    layers.add(Block(inputs, row, fuse));
    inputs = row.outputs;
  }
  layers.add(ConvNormActivation(inputs, kLast, 1, layer(kSwish, fuse)));
  return layers;
}

}  // namespace

MobileNetV3::MobileNetV3(const MobileNetOptions& options)
    : ImageClassifier(features(options.fuse),
                      Sequential(Linear(kLast, kHead), Hardswish(), Dropout(options.dropout),
                                 Linear(kHead, options.num_classes))) {
  initialise();
}

}  // namespace quern::nn
