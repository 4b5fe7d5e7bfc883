// What the networks beside ResNets are made of, their sizes, initial values and names.
#include <doctest/doctest.h>

#include <cmath>

#include "gradcheck_helper.h"
#include "quern/nn/nn.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/binary.h"
#include "quern/ops/conv2d.h"

using namespace quern;
using namespace quern::test;

namespace {

int64_t parameters(const nn::Module& module) {
  int64_t count = 0;
  for (const Tensor& p : module.parameters()) count += p.numel();
  return count;
}
double deviation(const Tensor& t) {
  double squares = 0;
  for (const double v : t.to_vector<double>()) squares += v * v;
  return std::sqrt(squares / static_cast<double>(t.numel()));
}

}  // namespace

TEST_CASE("networks have as many parameters as torchvision's and timm's") {
  CHECK_EQ(parameters(nn::mobilenet_v2()), 3504872);
  CHECK_EQ(parameters(nn::mobilenet_v3_large()), 5483032);
  CHECK_EQ(parameters(nn::efficientnet_b0()), 5288548);
  CHECK_EQ(parameters(nn::efficientnet_lite0()), 4652008);
  CHECK_EQ(parameters(nn::resnext50_32x4d()), 25028904);
  CHECK_EQ(parameters(nn::convnext_tiny()), 28589128);
}

TEST_CASE("networks start as torchvision's") {
  manual_seed(3);
  const auto check = [](const nn::Module& module, const char* name, double expected) {
    CAPTURE(std::string(name));
    const Tensor t = module.named_parameters().at(name);
    // Of a normal sample, five standard errors of its deviation.
    CHECK(std::abs(deviation(t) / expected - 1) <
          5 / std::sqrt(2 * static_cast<double>(t.numel())));
  };
  const nn::MobileNetV2 v2 = nn::mobilenet_v2();
  check(v2, "features.18.0.weight", std::sqrt(2 / 1280.0));
  check(v2, "features.8.conv.1.0.weight", std::sqrt(2 / (384.0 * 9)));
  check(v2, "classifier.1.weight", 0.01);
  const nn::EfficientNet b0 = nn::efficientnet_b0();
  check(b0, "features.7.0.block.0.0.weight", std::sqrt(2 / 1152.0));
  check(b0, "classifier.1.weight", 1 / std::sqrt(3000.0));
  CHECK_EQ(deviation(b0.named_parameters().at("features.1.0.block.1.fc1.bias")), 0);
  const nn::EfficientNetLite lite = nn::efficientnet_lite0();
  check(lite, "blocks.3.1.conv_dw.weight", std::sqrt(2 / 9.0));
  check(lite, "conv_head.weight", std::sqrt(2 / 1280.0));
  const nn::ConvNeXt next = nn::convnext_tiny();
  check(next, "features.5.3.block.3.weight", 0.02);
  check(next, "features.0.0.weight", 0.02);
  const Tensor scale = next.named_parameters().at("features.1.0.layer_scale");
  CHECK(scale.shape() == Shape{96, 1, 1});
  CHECK_EQ(max_abs_difference(scale, full({96, 1, 1}, 1e-6)), 0);
}

TEST_CASE("round_channels is torchvision's _make_divisible") {
  for (const auto& [channels, expected] :
       {std::pair{18.0, int64_t{24}}, {30.0, 32}, {16.0, 16}, {60.0, 64}, {1.0, 8}, {168.0, 168}})
    CHECK_EQ(nn::round_channels(channels), expected);
}

TEST_CASE("StochasticDepth drops whole samples in training, and only then") {
  manual_seed(5);
  const Tensor x = random({4000, 2, 3}, 1, DType::f32, {}, 1, 2);
  nn::StochasticDepth depth(0.25);
  const auto y = depth(x).to_vector<double>(), values = x.to_vector<double>();
  double kept = 0;
  for (size_t i = 0; i < values.size(); i += 6) {
    const bool keeps = y[i] != 0;
    kept += keeps;
    for (size_t j = i; j < i + 6; ++j)
      CHECK(std::abs(y[j] - (keeps ? values[j] / 0.75 : 0)) < 1e-6);
  }
  CHECK(std::abs(kept / 4000 - 0.75) < 5 * std::sqrt(0.25 * 0.75 / 4000));
  depth.eval();
  CHECK(depth(x).is_same(x));
  CHECK(nn::StochasticDepth(0)(x).is_same(x));
  CHECK_THROWS_WITH_AS(nn::StochasticDepth(1),
                       "[StochasticDepth] p: expected 0 to less than 1, got 1", Error);
}

TEST_CASE("SqueezeExcitation scales channels by what their means say") {
  nn::SqueezeExcitation squeeze(6, 3, relu, hardsigmoid);
  const TensorDict p = squeeze.state_dict();
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = random({2, 6, 5, 4}, 1, DType::f32, format);
    const Tensor mean = adaptive_avg_pool2d(x, 1),
                 hidden = relu(conv2d(mean, p.at("fc1.weight"), p.at("fc1.bias"))),
                 scale = hardsigmoid(conv2d(hidden, p.at("fc2.weight"), p.at("fc2.bias")));
    const Tensor y = squeeze(x);
    CHECK_EQ(max_abs_difference(y, x * scale), 0);
    CHECK(y.is_dense_as(format));
  }
}

TEST_CASE("LayerNorm2d normalises each pixel's channels") {
  nn::LayerNorm2d norm(5);
  const Tensor x = random({2, 5, 3, 4}, 1, DType::f32);
  const Tensor y = norm(x);
  CHECK(y.shape() == x.shape());
  for (int64_t i = 0; i < 3; ++i) {
    const auto pixel = raw::contiguous(raw::select(raw::select(raw::select(y, 0, 1), 1, i), 1, 2))
                           .to_vector<double>();
    double mean = 0, square = 0;
    for (const double v : pixel) mean += v / 5, square += v * v / 5;
    CHECK(std::abs(mean) < 1e-6);
    CHECK(std::abs(square - 1) < 1e-3);
  }
  CHECK_THROWS_WITH_AS(norm(zeros({2, 5})),
                       "[LayerNorm2d] input: expected [N,5,H,W], got f32 [2,5]", Error);
}

TEST_CASE("efficientnet_lite_names gives timm's") {
  const Tensor t = zeros({1});
  const TensorDict theirs{{"_conv_stem.weight", t},
                          {"_bn0.running_var", t},
                          {"_blocks.0._depthwise_conv.weight", t},
                          {"_blocks.0._bn1.weight", t},
                          {"_blocks.0._project_conv.weight", t},
                          {"_blocks.0._bn2.bias", t},
                          {"_blocks.2._expand_conv.weight", t},
                          {"_blocks.15._bn0.weight", t},
                          {"_blocks.15._project_conv.weight", t},
                          {"_blocks.15._bn2.weight", t},
                          {"_conv_head.weight", t},
                          {"_bn1.bias", t},
                          {"_fc.weight", t},
                          {"blocks.1.0.conv_pw.weight", t}};
  std::vector<std::string> names;
  for (const auto& [name, tensor] : nn::efficientnet_lite_names(theirs)) names.push_back(name);
  CHECK_EQ(names, std::vector<std::string>{
                      "conv_stem.weight", "bn1.running_var", "blocks.0.0.conv_dw.weight",
                      "blocks.0.0.bn1.weight", "blocks.0.0.conv_pw.weight", "blocks.0.0.bn2.bias",
                      "blocks.1.1.conv_pw.weight", "blocks.6.0.bn1.weight",
                      "blocks.6.0.conv_pwl.weight", "blocks.6.0.bn3.weight", "conv_head.weight",
                      "bn2.bias", "classifier.weight", "blocks.1.0.conv_pw.weight"});
}
