#pragma once
#include <memory>

#include "options.h"
#include "quern/nn/module.h"
#include "quern/nn/safetensors.h"

namespace resnet50 {

/// The network of --arch: torchvision's initial weights, drawn from --seed, or those of --weights,
/// whose head may be of other classes where they are to be trained.
std::unique_ptr<quern::nn::Module> make_model(const Options& options);

/// What a file of weights tells apart: the rows of its head, 1000 where it has none, and their
/// names where it holds them, as files of --save and --output-dir do.
struct WeightsClasses {
  int64_t count = 1000;
  std::vector<std::string> names;
};
WeightsClasses classes_of(const std::string& path);
/// The metadata by which a file of weights holds them.
quern::Metadata classes_metadata(const std::vector<std::string>& names);

int64_t count_parameters(const quern::nn::Module& model);

}  // namespace resnet50
