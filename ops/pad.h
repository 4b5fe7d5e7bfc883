// pad: a constant border.
#pragma once
#include <vector>

#include "quern/tensor/tensor.h"

namespace quern {

/// `x` with padding[0] elements of `value` before and padding[1] after along the last dimension,
/// padding[2] and padding[3] along the one before it, and so on. Keeps dtype and format; dx is the
/// inner part of dy. Errors: an odd number of sizes, more than x has dimensions for, a negative
/// one.
Tensor pad(const Tensor& x, const std::vector<int64_t>& padding, double value = 0);

}  // namespace quern
