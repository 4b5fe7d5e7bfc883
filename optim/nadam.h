// NAdam, Adam with Nesterov's momentum, with torch.optim.NAdam's formula.
// At a parameter's t-th step:
//
//   g ← g + weight_decay·p
//   m ← m + (1 - β₁)·(g - m)
//   v ← β₂·v + (1 - β₂)·g²
//   μᵢ = β₁·(1 - 0.96^(i·momentum_decay) / 2),   M = μ₁ ··· μₜ
//   p ← p - lr·((1 - μₜ) / (1 - M)·g + μₜ₊₁ / (1 - M·μₜ₊₁)·m) / (√v / √(1 - β₂ᵗ) + eps)
//
// Dozat, "Incorporating Nesterov momentum into Adam", 2016.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct NAdamOptions {
  double lr = 2e-3;                   ///< the rate
  double beta1 = 0.9, beta2 = 0.999;  ///< of the averages of g and of its square
  double eps = 1e-8;                  ///< added to the root, so that 0 divides nothing
  double weight_decay = 0;            ///< of the parameter, into the gradient
  double momentum_decay = 4e-3;       ///< how fast the momentum of a step grows to beta1
  bool stochastic_rounding = false;   ///< of bf16 and f16 parameters: see optimizer.h
};

class NAdam final : public OptimizerOf<NAdamOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more.
  explicit NAdam(std::vector<Group<NAdamOptions>> groups);
  explicit NAdam(Tensors params, NAdamOptions options = {})
      : NAdam(std::vector{Group<NAdamOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
