// Activations. dtype, shape and memory format are those of x, computed in f32 for bf16; all but
// relu take integers as f32. Errors: undefined tensors, bool.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

Tensor relu(const Tensor& x);     ///< max(x, 0), gradient 0 at 0; NaN stays
Tensor sigmoid(const Tensor& x);  ///< 1 / (1 + exp(-x))
Tensor tanh(const Tensor& x);
Tensor gelu(const Tensor& x);  ///< x·Φ(x) by erf: Hendrycks and Gimpel 2016
Tensor silu(const Tensor& x);  ///< x·sigmoid(x)

}  // namespace quern
