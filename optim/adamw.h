// AdamW: Adam with weight decay apart from the gradient, with torch.optim.AdamW's formula. At a
// parameter's t-th step:
//
//   p ← p·(1 - lr·weight_decay)
//   m ← m + (1 - β₁)·(g - m)
//   v ← β₂·v + (1 - β₂)·g²
//   p ← p - lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + eps)
//
// Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR'19, where the decay is not
// multiplied by the learning rate; here, as in PyTorch, it is.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct AdamWOptions {
  double lr = 1e-3;                   ///< the rate
  double beta1 = 0.9, beta2 = 0.999;  ///< of the averages of g and of its square
  double eps = 1e-8;                  ///< added to the root, so that 0 divides nothing
  /// Of the parameter, beside the gradient.
  double weight_decay = 1e-2;
  Idle idle = Idle::lazy;            ///< of the rows that a row-sparse gradient does not have
  bool stochastic_rounding = false;  ///< of bf16 and f16 parameters: see optimizer.h
};

class AdamW final : public OptimizerOf<AdamWOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more;
  /// Idle::catch_up with a beta1 of the root of beta2 or more.
  explicit AdamW(std::vector<Group<AdamWOptions>> groups);
  explicit AdamW(Tensors params, AdamWOptions options = {})
      : AdamW(std::vector{Group<AdamWOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
