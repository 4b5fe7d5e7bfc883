// Adagrad, with torch.optim.Adagrad's formula. At a parameter's t-th step:
//
//   g ← g + weight_decay·p
//   s ← s + g²                                      (from initial_accumulator_value)
//   p ← p - lr / (1 + (t - 1)·lr_decay) · g / (√s + eps)
//
// Duchi et al., "Adaptive subgradient methods for online learning and
// stochastic optimization", 2011.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct AdagradOptions {
  double lr = 1e-2;                      ///< the rate
  double lr_decay = 0;                   ///< how fast the rate falls
  double weight_decay = 0;               ///< of the parameter, into the gradient
  double initial_accumulator_value = 0;  ///< what the sum of squares starts as
  double eps = 1e-10;                    ///< added to the root, so that 0 divides nothing
  bool stochastic_rounding = false;      ///< of bf16 and f16 parameters: see optimizer.h
};

class Adagrad final : public OptimizerOf<AdagradOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option.
  explicit Adagrad(std::vector<Group<AdagradOptions>> groups);
  explicit Adagrad(Tensors params, AdagradOptions options = {})
      : Adagrad(std::vector{Group<AdagradOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
