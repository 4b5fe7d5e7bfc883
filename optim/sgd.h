// Stochastic gradient descent, with torch.optim.SGD's formula:
//
//   g ← g + weight_decay·p
//   b ← g at a parameter's first step, later momentum·b + (1 - dampening)·g       (if momentum ≠ 0)
//   g ← g + momentum·b if nesterov, else b                                        (if momentum ≠ 0)
//   p ← p - lr·g
//
// Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML'13,
// where the learning rate enters the buffer; here, as in PyTorch, it does not, so that it may
// change from step to step.
#pragma once
#include "quern/optim/optimizer.h"

namespace quern::optim {

/// As the formula names them.
struct SGDOptions {
  double lr = 1e-3;         ///< the rate
  double momentum = 0;      ///< how much of b stays
  double dampening = 0;     ///< what of g does not enter b
  double weight_decay = 0;  ///< of the parameter, into the gradient
  /// A step looks ahead by momentum·b.
  bool nesterov = false;
  Idle idle = Idle::lazy;            ///< of the rows that a row-sparse gradient does not have
  bool stochastic_rounding = false;  ///< of bf16 and f16 parameters: see optimizer.h
};

class SGD final : public OptimizerOf<SGDOptions> {
 public:
  /// Errors: those of Optimizer; a negative or non-finite option; nesterov without momentum or with
  /// dampening.
  explicit SGD(std::vector<Group<SGDOptions>> groups);
  explicit SGD(Tensors params, SGDOptions options = {})
      : SGD(std::vector{Group<SGDOptions>{std::move(params), options}}) {}

  void step() override;
};

}  // namespace quern::optim
