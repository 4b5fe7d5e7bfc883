// Adadelta, with torch.optim.Adadelta's formula:
//
//   g ← g + weight_decay·p
//   v ← ρ·v + (1 - ρ)·g²
//   d ← √(u + eps) / √(v + eps) · g
//   u ← ρ·u + (1 - ρ)·d²
//   p ← p - lr·d
//
// Zeiler, "Adadelta: an adaptive learning rate method", 2012, where there is no learning rate.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct AdadeltaOptions {
  double lr = 1;                     ///< the rate
  double rho = 0.9;                  ///< how much of the averages stays
  double eps = 1e-6;                 ///< under the roots, so that the first step moves
  double weight_decay = 0;           ///< of the parameter, into the gradient
  bool stochastic_rounding = false;  ///< of bf16 and f16 parameters: see optimizer.h
};

class Adadelta final : public OptimizerOf<AdadeltaOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a rho of more than 1.
  explicit Adadelta(std::vector<Group<AdadeltaOptions>> groups);
  explicit Adadelta(Tensors params, AdadeltaOptions options = {})
      : Adadelta(std::vector{Group<AdadeltaOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
