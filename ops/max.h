// The largest element along a dimension, and where it is.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// The largest elements, and where they are.
struct MaxResult {
  Tensor values;   ///< x's dtype; takes the gradient to the place in `indices`
  Tensor indices;  ///< i64; the first of equals; the first NaN if there is one
};

/// The dimension goes, or stays with size 1 if `keepdim`. Errors: undefined, bool, a dimension out
/// of range or of size 0.
MaxResult max(const Tensor& x, int64_t dim, bool keepdim = false);
/// max().indices alone.
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);

}  // namespace quern
