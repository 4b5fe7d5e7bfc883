// expand: broadcasting by name.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// A view of `x` as `shape`: dimensions of size 1 are repeated with stride 0, new ones come first.
/// dx is the sum of dy over what was repeated. Error: a size that is neither x's nor made from 1.
Tensor expand(const Tensor& x, const Shape& shape);

}  // namespace quern
