// flatten: several dimensions as one.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// Dimensions start..end of `x`, both included, as a single one; a scalar becomes [1]. From
/// dimension 1: [N, C, H, W] to [N, C·H·W]. Errors: a dimension that x doesn't have, start behind
/// end.
Tensor flatten(const Tensor& x, int64_t start = 1, int64_t end = -1);

}  // namespace quern
