// Averaged SGD, with torch.optim.ASGD's formula. At a parameter's t-th step:
//
//   η = lr / (1 + lambd·lr·(t - 1))^alpha,   μ = 1 / max(1, t - 1 - t0)
//   g ← g + weight_decay·p
//   p ← (1 - lambd·η)·p - η·g
//   a ← a + μ·(p - a)
//
// The average a is the state "ax". PyTorch takes η from the rate that the step before had.
// Polyak, Juditsky, "Acceleration of stochastic approximation by averaging", 1992.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct ASGDOptions {
  double lr = 1e-2;                  ///< the rate
  double lambd = 1e-4;               ///< decay of the parameter, and of the rate
  double alpha = 0.75;               ///< the power by which the rate falls
  double t0 = 1e6;                   ///< the step after which a averages
  double weight_decay = 0;           ///< of the parameter, into the gradient
  bool stochastic_rounding = false;  ///< of bf16 and f16 parameters: see optimizer.h
};

class ASGD final : public OptimizerOf<ASGDOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option.
  explicit ASGD(std::vector<Group<ASGDOptions>> groups);
  explicit ASGD(Tensors params, ASGDOptions options = {})
      : ASGD(std::vector{Group<ASGDOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
