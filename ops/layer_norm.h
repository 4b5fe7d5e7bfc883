// layer_norm: each sample to mean 0 and variance 1 over its last dimensions, then scaled and
// shifted. Ba, Kiros & Hinton, "Layer normalization", 2016.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// y = (x - mean) · invstd · weight + bias, with mean and (biased) variance over the last
/// dimensions of x, which have the sizes normalized_shape, and invstd = 1/sqrt(var + eps).
///   x             [..., normalized_shape], bf16, f32 or f64; the output has its dtype, contiguous
///   weight, bias  [normalized_shape], each f32 or of x's dtype (f64 for f64), or undefined
///                 (1 and 0)
/// Errors: an empty x or normalized_shape, sizes that do not end in it, wrong dtype or size.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace quern
