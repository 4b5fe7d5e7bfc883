// RMSprop, with torch.optim.RMSprop's formula (which knows a centred variant, too):
//
//   g ← g + weight_decay·p
//   v ← α·v + (1 - α)·g²
//   b ← momentum·b + g / (√v + eps)     (if momentum ≠ 0; else b is that quotient alone)
//   p ← p - lr·b
//
// Tieleman, Hinton, lecture 6.5 of "Neural networks for machine learning", 2012. TensorFlow's,
// which MobileNet and EfficientNet were trained with, adds eps under the root.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct RMSpropOptions {
  double lr = 1e-2;                  ///< the rate
  double alpha = 0.99;               ///< how much of v stays
  double eps = 1e-8;                 ///< added to the root, so that 0 divides nothing
  double momentum = 0;               ///< how much of b stays
  double weight_decay = 0;           ///< of the parameter, into the gradient
  bool stochastic_rounding = false;  ///< of bf16 and f16 parameters: see optimizer.h
};

class RMSprop final : public OptimizerOf<RMSpropOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; an alpha of more than 1.
  explicit RMSprop(std::vector<Group<RMSpropOptions>> groups);
  explicit RMSprop(Tensors params, RMSpropOptions options = {})
      : RMSprop(std::vector{Group<RMSpropOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
