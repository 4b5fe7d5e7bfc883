// Dimensions in another order.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// A view whose dimension i is x's dimension order[i]. Error: not each of x's dimensions once.
Tensor permute(const Tensor& x, const Dims& order);

/// A view with two dimensions swapped.
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);

}  // namespace quern
