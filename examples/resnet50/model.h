#pragma once
#include "options.h"
#include "quern/nn/resnet.h"

namespace resnet50 {

/// The network of --arch: torchvision's initial weights, drawn from --seed, or those of --weights,
/// whose head may be of other classes where they are to be trained.
quern::nn::ResNet make_model(const Options& options);
int64_t count_parameters(const quern::nn::ResNet& model);

}  // namespace resnet50
