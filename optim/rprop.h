// Rprop, resilient backpropagation, with torch.optim.Rprop's formula, for whole batches:
//
//   s ← s·etaplus where g has the sign that it had before, s·etaminus where it has the other one,
//       within step_min..step_max                    (from lr)
//   g ← 0 where it has the other one
//   p ← p - sign(g)·s
//
// Riedmiller, Braun, "A direct adaptive method for faster backpropagation learning", 1993.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct RpropOptions {
  double lr = 1e-2;                       ///< the first step's size
  double etaminus = 0.5, etaplus = 1.2;   ///< what a step shrinks and grows by
  double step_min = 1e-6, step_max = 50;  ///< what it stays within
  bool stochastic_rounding = false;       ///< of bf16 and f16 parameters: see optimizer.h
};

class Rprop final : public OptimizerOf<RpropOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option;
  /// an etaminus of 1 or more, an etaplus of 1 or less.
  explicit Rprop(std::vector<Group<RpropOptions>> groups);
  explicit Rprop(Tensors params, RpropOptions options = {})
      : Rprop(std::vector{Group<RpropOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
