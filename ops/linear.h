// linear: a fully connected layer.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// y = x·weightᵀ + bias
///   x       [..., in], bf16, f32 or f64, any strides; y is [..., out] of the same dtype
///   weight  [out, in] of x's dtype
///   bias    [out] of x's dtype or f32, or undefined; added to the f32 sums (f64 for f64), before y
///           is rounded, once
/// Autocast: x and weight in bf16. Rows may be none, and in may be 0: y is then bias alone.
/// f32 outside autocast is multiplied as set_float32_matmul_precision() says.
/// Backward: dx = dy·weight, dweight = dyᵀ·x, dbias = Σ dy over rows; the last two in f32 for bf16.
/// Errors: other dtypes, ranks or sizes.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace quern
