// Gradient clipping by the norm of all gradients together.
//
//   norm = √(Σ g²)        g ← g · min(1, max_norm / (norm + 1e-6))
//
// Pascanu et al., "On the difficulty of training recurrent neural networks", ICML'13; the 1e-6 is
// torch.nn.utils.clip_grad_norm_'s.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern::optim {

/// Scales the gradients of `params` in place and returns their norm before that, summed in f64 in a
/// fixed order. Parameters without a gradient don't count; a norm that is not finite makes
/// gradients NaN, as in PyTorch. Errors: an undefined parameter; max_norm negative or NaN.
double clip_grad_norm_(const Tensors& params, double max_norm);

}  // namespace quern::optim
