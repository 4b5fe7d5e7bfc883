// Sums and means over dimensions. f32 and bf16 are accumulated in f32 and rounded once, f64 in f64,
// blocks in a fixed order. Autocast: f32. Errors: undefined tensors; a dimension out of range or
// named twice.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// Σ x over all dimensions (a tensor of rank 0), or over `dims`, which stay with size 1 if
/// `keepdim`. Integers and bool give i64. No `dims` means all. An empty sum is 0.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, const Dims& dims, bool keepdim = false);

/// Σ x / count; NaN where there is nothing to take the mean of. Error: integers.
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim = false);

}  // namespace quern
