// Comparisons, and the choice by their results. Shapes broadcast by NumPy's rule; dtypes promote
// (tensor/dtype.h); the result has the memory format of the operands of its shape.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// @name Comparisons
/// To bool. NaN is unequal to all, itself too. A number is rounded to a floating tensor's dtype, as
/// in PyTorch; with integers it is compared exactly. Errors: undefined tensors, shapes that do not
/// broadcast, bool operands.
/// @{
Tensor eq(const Tensor& a, const Tensor& b);  ///< a = b
Tensor eq(const Tensor& a, double b);         ///< a = b
Tensor ne(const Tensor& a, const Tensor& b);  ///< a ≠ b
Tensor ne(const Tensor& a, double b);         ///< a ≠ b
Tensor lt(const Tensor& a, const Tensor& b);  ///< a < b
Tensor lt(const Tensor& a, double b);         ///< a < b
Tensor le(const Tensor& a, const Tensor& b);  ///< a ≤ b
Tensor le(const Tensor& a, double b);         ///< a ≤ b
Tensor gt(const Tensor& a, const Tensor& b);  ///< a > b
Tensor gt(const Tensor& a, double b);         ///< a > b
Tensor ge(const Tensor& a, const Tensor& b);  ///< a ≥ b
Tensor ge(const Tensor& a, double b);         ///< a ≥ b
/// @}

/// a where the condition holds, else b. The gradient goes where the value came from, 0 to the
/// other. Errors: undefined tensors, a condition that is not bool, shapes that do not broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

}  // namespace quern
