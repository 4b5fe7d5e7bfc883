// RAdam, Adam with a rectified variance, with torch.optim.RAdam's formula.
// At a parameter's t-th step:
//
//   g ← g + weight_decay·p
//   m ← m + (1 - β₁)·(g - m)
//   v ← β₂·v + (1 - β₂)·g²
//   ρ∞ = 2 / (1 - β₂) - 1,   ρ = ρ∞ - 2t·β₂ᵗ / (1 - β₂ᵗ)
//   r = √((ρ - 4)(ρ - 2)·ρ∞ / ((ρ∞ - 4)(ρ∞ - 2)·ρ))
//   p ← p - lr / (1 - β₁ᵗ) · m · (ρ > 5 ? r·√(1 - β₂ᵗ) / (√v + eps) : 1)
//
// Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR'20.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct RAdamOptions {
  double lr = 1e-3;                   ///< the rate
  double beta1 = 0.9, beta2 = 0.999;  ///< of the averages of g and of its square
  double eps = 1e-8;                  ///< added to the root, so that 0 divides nothing
  double weight_decay = 0;            ///< of the parameter, into the gradient
  bool stochastic_rounding = false;   ///< of bf16 and f16 parameters: see optimizer.h
};

class RAdam final : public OptimizerOf<RAdamOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more.
  explicit RAdam(std::vector<Group<RAdamOptions>> groups);
  explicit RAdam(Tensors params, RAdamOptions options = {})
      : RAdam(std::vector{Group<RAdamOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
