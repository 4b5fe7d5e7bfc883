// Activations: torch.nn.ReLU.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// max(x, 0)
class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

}  // namespace quern::nn
