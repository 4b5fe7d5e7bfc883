// Changes of dtype and of memory format.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// `x` with elements of `dtype` (rounded to nearest even between floating dtypes, towards zero from
/// floating to integer) and in its format; `x` itself if it has this dtype already. The gradient,
/// where both dtypes are floating, is dy in x's dtype.
Tensor to(const Tensor& x, DType dtype);

/// `x` dense as `format`; `x` itself if it is already. channels_last: [N, C, H, W] only. dx = dy.
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);

/// A dense copy of the same dtype and format. dx = dy.
Tensor clone(const Tensor& x);

}  // namespace quern
