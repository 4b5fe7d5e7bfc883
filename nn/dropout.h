// Dropout: torch.nn.Dropout.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// In training zeroes each element with probability `p` and divides the others by 1-p; nothing in
/// inference. Error: p not in [0, 1].
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) override;

  double p;
};

}  // namespace quern::nn
