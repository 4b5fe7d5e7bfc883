// LAMB, for large batches. At a parameter's t-th step:
//
//   m ← m + (1 - β₁)·(g - m)
//   v ← β₂·v + (1 - β₂)·g²
//   u = m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + eps) + weight_decay·p
//   p ← p - lr·r·u,   r = ‖p‖ / ‖u‖, or 1 where either norm is 0
//
// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR'20,
// with φ(x) = x. The norms are those of the whole parameter, of a row-sparse gradient's those of
// the rows that it has. PyTorch has no LAMB.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct LAMBOptions {
  double lr = 1e-3;                   ///< the rate
  double beta1 = 0.9, beta2 = 0.999;  ///< of the averages of g and of its square
  double eps = 1e-6;                  ///< added to the root, so that 0 divides nothing
  double weight_decay = 1e-2;         ///< of the parameter, into u
  bool stochastic_rounding = false;   ///< of bf16 and f16 parameters: see optimizer.h
};

class LAMB final : public OptimizerOf<LAMBOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more.
  explicit LAMB(std::vector<Group<LAMBOptions>> groups);
  explicit LAMB(Tensors params, LAMBOptions options = {})
      : LAMB(std::vector{Group<LAMBOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
