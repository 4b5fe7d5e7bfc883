#pragma once
#include <memory>

#include "options.h"
#include "quern/nn/module.h"

namespace resnet50 {

/// The network of --arch: torchvision's initial weights, drawn from --seed, or those of --weights,
/// whose head may be of other classes where they are to be trained.
std::unique_ptr<quern::nn::Module> make_model(const Options& options);
int64_t count_parameters(const quern::nn::Module& model);

}  // namespace resnet50
