#include "model.h"

#include "quern/nn/safetensors.h"
#include "quern/tensor/random.h"

namespace resnet50 {

using namespace quern;

nn::ResNet make_model(const Options& options) {
  const bool given = !options.weights.empty();
  const TensorDict weights = given ? load_safetensors(options.weights) : TensorDict();
  manual_seed(options.seed);
  nn::ResNet model = nn::resnet(options.arch, {.fuse = !options.no_fuse});
  if (given) model.load_state_dict(weights);
  return model;
}

int64_t count_parameters(const nn::ResNet& model) {
  int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

}  // namespace resnet50
