// Other shapes of the same elements in the same logical order.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// `x` as `shape`, of as many elements; one size may be -1: deduced. A view where x's strides allow
/// it, else a copy. dx = dy as x's shape.
Tensor reshape(const Tensor& x, const Shape& shape);

/// A view without dimension `dim` if its size is 1, else of x's own shape.
Tensor squeeze(const Tensor& x, int64_t dim);

/// A view with a dimension of size 1 before dimension `dim` (-1: after the last).
Tensor unsqueeze(const Tensor& x, int64_t dim);

}  // namespace quern
