// Activations. dtype, shape and memory format are those of x, computed in f32 for bf16; all but
// relu and relu6 take integers as f32. Errors: undefined tensors, bool; a slope that is no number.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// The function of that name; x itself for none.
Tensor activate(const Tensor& x, Activation activation);

Tensor relu(const Tensor& x);     ///< max(x, 0), gradient 0 at 0; NaN stays
Tensor sigmoid(const Tensor& x);  ///< 1 / (1 + exp(-x))
Tensor tanh(const Tensor& x);     ///< (exp(x) - exp(-x)) / (exp(x) + exp(-x))
Tensor gelu(const Tensor& x);     ///< x·Φ(x) by erf: Hendrycks and Gimpel 2016
Tensor silu(const Tensor& x);     ///< x·sigmoid(x)

/// min(max(x, 0), 6), gradient 0 at 0 and 6
Tensor relu6(const Tensor& x);
/// min(max(x + 3, 0), 6) / 6, gradient 0 at -3 and 3: Howard et al., "Searching for MobileNetV3",
/// ICCV'19
Tensor hardsigmoid(const Tensor& x);
/// x·hardsigmoid(x), gradient 0 at -3 and 1 at 3
Tensor hardswish(const Tensor& x);
/// x where it is above 0, else slope·x
Tensor leaky_relu(const Tensor& x, double slope = 0.01);

}  // namespace quern
