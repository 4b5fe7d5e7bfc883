// The k largest (or smallest) elements along a dimension.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// The largest (or smallest) elements, and where they are.
struct TopkResult {
  Tensor values;   ///< x's dtype, size k along the dimension; takes the gradient to the places in
                   ///< `indices`
  Tensor indices;  ///< i64
};

/// Best first; equals in the order of their indices; NaN counts as larger than all. `sorted` is
/// PyTorch's: the result is sorted either way. Errors: undefined, bool, a dimension out of range, k
/// not in 0..size.
TopkResult topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true,
                bool sorted = true);

}  // namespace quern
