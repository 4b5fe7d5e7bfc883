// Adam, with torch.optim.Adam's formula. At a parameter's t-th step:
//
//   g ← g + weight_decay·p
//   m ← m + (1 - β₁)·(g - m)
//   v ← β₂·v + (1 - β₂)·g²
//   p ← p - lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + eps)
//
// Kingma, Ba, "Adam: a method for stochastic optimization", ICLR'15. AdamW keeps the decay apart
// from the gradient.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct AdamOptions {
  double lr = 1e-3;                   ///< the rate
  double beta1 = 0.9, beta2 = 0.999;  ///< of the averages of g and of its square
  double eps = 1e-8;                  ///< added to the root, so that 0 divides nothing
  /// Of the parameter, into the gradient.
  double weight_decay = 0;
  Idle idle = Idle::lazy;            ///< of the rows that a row-sparse gradient does not have
  bool stochastic_rounding = false;  ///< of bf16 and f16 parameters: see optimizer.h
};

class Adam final : public OptimizerOf<AdamOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more;
  /// Idle::catch_up with weight_decay, or with a beta1 of the root of beta2 or more.
  explicit Adam(std::vector<Group<AdamOptions>> groups);
  explicit Adam(Tensors params, AdamOptions options = {})
      : Adam(std::vector{Group<AdamOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
