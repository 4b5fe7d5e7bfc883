// Sums without gradients.
#pragma once
#include <string_view>

#include "quern/ops/kernels/elementwise/elementwise_kernel.h"
#include "quern/tensor/tensor.h"

namespace quern::raw {

/// As sum(); `op` is who errors name.
Tensor sum(std::string_view op, const Tensor& x, const Dims& dims, bool keepdim);
/// t summed over the dimensions along which `shape` was broadcast to t's: the gradient of an
/// operand.
Tensor sum_to(const Tensor& t, const Shape& shape);
/// sum_to(f(a, b), shape), in the accumulator's dtype; where that is a block of dimensions, as
/// pixels of images by channels, what is summed is in a cache and nowhere else.
Tensor sum_to(std::string_view op, kernels::Binary f, const Tensor& a, const Tensor& b,
              const Shape& shape);

}  // namespace quern::raw
