// Sums without gradients.
#pragma once
#include <string_view>

#include "quern/tensor/tensor.h"

namespace quern::raw {

/// As sum(); `op` is who errors name.
Tensor sum(std::string_view op, const Tensor& x, const Dims& dims, bool keepdim);
/// t summed over the dimensions along which `shape` was broadcast to t's: the gradient of an
/// operand.
Tensor sum_to(const Tensor& t, const Shape& shape);

}  // namespace quern::raw
