// The driver of the elementwise kernels, without gradients: promotion, broadcasting, format,
// threads.
//
// dtype: the promoted one; functions that are real by nature (exp, div, pow, ...) take integers as
// f32. Format: that of the operands that have the result's shape; of the first of them if they
// differ.
#pragma once
#include <string_view>

#include "quern/ops/kernels/elementwise/elementwise_kernel.h"
#include "quern/tensor/tensor.h"

namespace quern::raw {

/// y = f(x; p, q). `op` is who errors name.
Tensor unary(std::string_view op, kernels::Unary f, const Tensor& x, double p = 0, double q = 0);

/// y = f(a, b; p, q), broadcast. A number is not rounded to the tensor's dtype, but to the one
/// computed in (f32 for bf16); it makes an integer tensor f32.
Tensor binary(std::string_view op, kernels::Binary f, const Tensor& a, const Tensor& b,
              double p = 0, double q = 0);
Tensor binary(std::string_view op, kernels::Binary f, const Tensor& a, double b);
Tensor binary(std::string_view op, kernels::Binary f, double a, const Tensor& b);

/// a op b, broadcast and promoted, as bool.
Tensor compare(std::string_view op, kernels::Comparison f, const Tensor& a, const Tensor& b);
/// a where the condition holds, else b; broadcast, promoted.
Tensor where(std::string_view op, const Tensor& condition, const Tensor& a, const Tensor& b);

}  // namespace quern::raw
