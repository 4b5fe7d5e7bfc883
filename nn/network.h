// The networks, by name.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "quern/nn/module.h"

namespace quern::nn {

/// What all networks have in common.
struct NetworkOptions {
  int64_t num_classes = 1000;  ///< logits an image
  bool drop = true;  ///< dropout and stochastic depth, in training, where the network has them
  bool fuse = true;  ///< each block as one op, where there is one for it
};

/// "resnet18" ... "convnext_tiny", as torchvision's (timm's for efficientnet_lite0).
std::span<const std::string_view> network_names();
/// All take images [N, 3, H, W] and make logits [N, num_classes]. Error: none of network_names().
std::unique_ptr<Module> network(std::string_view name, const NetworkOptions& options = {});

}  // namespace quern::nn
