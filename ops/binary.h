// Arithmetic of two tensors, or of a tensor and a number. Shapes broadcast by NumPy's rule; dtypes
// promote (tensor/dtype.h); the result has the memory format of the operands of its shape. A number
// is a double and makes an integer tensor f32. Gradients are summed over broadcast dimensions.
// Errors: undefined tensors, shapes that do not broadcast, bool operands.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// a + b
Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
/// a - b
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, double b);
Tensor sub(double a, const Tensor& b);
/// a·b
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, double b);
/// True division: integers give f32.
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, double b);
Tensor div(double a, const Tensor& b);

/// The larger; NaN if either is. Where they are equal, each takes half of the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
/// The smaller, likewise.
Tensor minimum(const Tensor& a, const Tensor& b);

/// a to the power b; integers give f32. Autocast: f32. The gradient by b is 0 where a is 0 and b >=
/// 0.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, double b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }

namespace raw {
/// dst += alpha·src, which broadcasts to dst, is converted to its dtype, and may be a part of it.
/// Errors: shapes; elements of dst that share memory.
void add_(const Tensor& dst, const Tensor& src, double alpha = 1);
}  // namespace raw

}  // namespace quern
