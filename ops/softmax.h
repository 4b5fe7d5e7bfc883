// Softmax along a dimension, computed in f32 for f32 and bf16, shifted by the largest element so
// that nothing overflows. Autocast: f32. Errors: undefined, not floating, a dimension out of range.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

Tensor softmax(const Tensor& x, int64_t dim);      ///< exp(x) / Σ exp(x)
Tensor log_softmax(const Tensor& x, int64_t dim);  ///< x - log Σ exp(x)

}  // namespace quern
