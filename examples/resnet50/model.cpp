#include "model.h"

#include <fmt/format.h>

#include "console.h"
#include "quern/nn/pretrained.h"
#include "quern/nn/pth.h"
#include "quern/tensor/random.h"

namespace resnet50 {

using namespace quern;

nn::ResNet make_model(const Options& options) {
  const bool given = !options.weights.empty();
  const TensorDict weights = given ? load_weights(options.weights) : TensorDict();
  manual_seed(options.seed);
  nn::ResNet model =
      nn::resnet(options.arch, {.num_classes = options.num_classes, .fuse = !options.no_fuse});
  if (!given) return model;
  if (options.mode != Mode::train) {
    model.load_state_dict(weights);
    return model;
  }
  const std::vector<std::string> left_out = nn::load_pretrained(model, weights);
  if (!left_out.empty())
    print(fmt::format("{}: left out: {}\n", options.weights, fmt::join(left_out, ", ")));
  return model;
}

int64_t count_parameters(const nn::ResNet& model) {
  int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

}  // namespace resnet50
