#include "model.h"

#include "quern/nn/safetensors.h"
#include "quern/tensor/random.h"

namespace resnet50 {

using namespace quern;

nn::ResNet make_model(const Options& options) {
  manual_seed(options.seed);
  nn::ResNet model = nn::resnet(options.arch);
  if (!options.weights.empty()) model.load_state_dict(load_safetensors(options.weights));
  return model;
}

int64_t count_parameters(const nn::ResNet& model) {
  int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

}  // namespace resnet50
