// adaptive_avg_pool2d: means over windows chosen to give the wanted output size.
#pragma once
#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// y[n,c,oh,ow] = mean of x over rows floor(oh·H/OH) .. ceil((oh+1)·H/OH)-1 and columns likewise.
///   x  [N, C, H, W], bf16, f32 or f64; y [N, C, OH, OW] of its dtype and format
/// Errors: rank, dtype, an empty x, an output size < 1.
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);

}  // namespace quern
