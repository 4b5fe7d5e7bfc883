// Adamax, with torch.optim.Adamax's formula. At a parameter's t-th step:
//
//   g ← g + weight_decay·p
//   m ← m + (1 - β₁)·(g - m)
//   u ← max(β₂·u, |g| + eps)
//   p ← p - lr / (1 - β₁ᵗ) · m / u
//
// Kingma, Ba, "Adam: a method for stochastic optimization", ICLR'15, section 7.1.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct AdamaxOptions {
  double lr = 2e-3;                   ///< the rate
  double beta1 = 0.9, beta2 = 0.999;  ///< of the averages of g and of its size
  double eps = 1e-8;                  ///< added to |g|, so that 0 divides nothing
  double weight_decay = 0;            ///< of the parameter, into the gradient
  bool stochastic_rounding = false;   ///< of bf16 and f16 parameters: see optimizer.h
};

class Adamax final : public OptimizerOf<AdamaxOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more.
  explicit Adamax(std::vector<Group<AdamaxOptions>> groups);
  explicit Adamax(Tensors params, AdamaxOptions options = {})
      : Adamax(std::vector{Group<AdamaxOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
