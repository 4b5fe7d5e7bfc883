// Dropout: torch.nn.Dropout, torchvision's StochasticDepth.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// In training zeroes each element with probability `p` and divides the others by 1-p; nothing in
/// inference. Error: p not in [0, 1].
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);  ///< PyTorch's unless given
  Tensor forward(const Tensor& x) override;

  double p;  ///< the probability
};

/// In training zeroes each sample of [N, ...] with probability `p` and divides the others by 1-p;
/// nothing in inference. Huang et al., "Deep networks with stochastic depth", ECCV'16. Error: p not
/// in [0, 1).
class StochasticDepth : public Module {
 public:
  explicit StochasticDepth(double p);  ///< of a sample
  Tensor forward(const Tensor& x) override;
  bool drops() const { return is_training() && p > 0; }  ///< does forward() change anything?

  double p;  ///< the probability
};

}  // namespace quern::nn
