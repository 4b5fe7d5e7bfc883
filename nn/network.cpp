#include "quern/nn/network.h"

#include <fmt/ranges.h>

#include <array>

#include "quern/nn/convnext.h"
#include "quern/nn/efficientnet.h"
#include "quern/nn/efficientnet_lite.h"
#include "quern/nn/mobilenet_v3.h"
#include "quern/nn/resnet.h"

namespace quern::nn {
namespace {

using Options = NetworkOptions;
using Made = std::unique_ptr<Module>;

template <ResNet (*make)(const ResNetOptions&)>
Made residual(const Options& o) {
  return std::make_unique<ResNet>(make({.num_classes = o.num_classes, .fuse = o.fuse}));
}
MobileNetOptions mobile(const Options& o) {
  MobileNetOptions options{.num_classes = o.num_classes, .fuse = o.fuse};
  if (!o.drop) options.dropout = 0;
  return options;
}
Made mobile_v2(const Options& o) { return std::make_unique<MobileNetV2>(mobile(o)); }
Made mobile_v3(const Options& o) { return std::make_unique<MobileNetV3>(mobile(o)); }
Made efficient(const Options& o) {
  EfficientNetOptions options{.num_classes = o.num_classes, .fuse = o.fuse};
  if (!o.drop) options.dropout = options.stochastic_depth = 0;
  return std::make_unique<EfficientNet>(options);
}
Made efficient_lite(const Options& o) {
  EfficientNetLiteOptions options{.num_classes = o.num_classes, .fuse = o.fuse};
  if (!o.drop) options.dropout = 0;
  return std::make_unique<EfficientNetLite>(options);
}
Made convnext(const Options& o) {
  ConvNeXtOptions options{.num_classes = o.num_classes};
  if (!o.drop) options.stochastic_depth = 0;
  return std::make_unique<ConvNeXt>(options);
}

constexpr std::pair<std::string_view, Made (*)(const Options&)> kNetworks[] = {
    {"resnet18", residual<resnet18>},   {"resnet34", residual<resnet34>},
    {"resnet50", residual<resnet50>},   {"resnet101", residual<resnet101>},
    {"resnet152", residual<resnet152>}, {"resnext50_32x4d", residual<resnext50_32x4d>},
    {"mobilenet_v2", mobile_v2},        {"mobilenet_v3_large", mobile_v3},
    {"efficientnet_b0", efficient},     {"efficientnet_lite0", efficient_lite},
    {"convnext_tiny", convnext},
};

}  // namespace

std::span<const std::string_view> network_names() {
  static constexpr auto names = [] {
    std::array<std::string_view, std::size(kNetworks)> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = kNetworks[i].first;
    return all;
  }();
  return names;
}

std::unique_ptr<Module> network(std::string_view name, const NetworkOptions& options) {
  for (const auto& [known, make] : kNetworks)
    if (known == name) return make(options);
  fail("network",
       fmt::format("name: expected one of {}, got \"{}\"", fmt::join(network_names(), ", "), name));
}

}  // namespace quern::nn
