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

struct AdamaxOptions {
  double lr = 2e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

class Adamax final : public Optimizer {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; a beta of 1 or more.
  explicit Adamax(std::vector<Group<AdamaxOptions>> groups);
  explicit Adamax(Tensors params, AdamaxOptions options = {});

  void step() override;
  double lr(size_t group = 0) const override;
  using Optimizer::set_lr;
  void set_lr(double lr, size_t group) override;

 private:
  std::vector<AdamaxOptions> options_;  // of each group
};

}  // namespace quern::optim
