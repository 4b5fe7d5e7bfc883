// max_pool2d: the largest value in each window.
#pragma once
#include <optional>

#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// y[n,c,oh,ow] = max over kh, kw of x[n, c, oh·stride - padding + kh·dilation, ...]; what lies
/// outside of x counts as -inf. A NaN in a window is its maximum. The gradient goes to the first
/// maximum.
///   x  [N, C, H, W], bf16, f32 or f64; the output has its dtype and format
/// Output height: floor((H + 2·padding - dilation·(kernel-1) - 1) / stride) + 1, with ceil_mode
/// rounded up, less a last window that would start beyond H + padding.
/// Errors: rank, dtype, an empty x, kernel, stride or dilation < 1, a kernel of 2^31 taps or more,
/// padding not in 0..kernel/2, no output.
Tensor max_pool2d(const Tensor& x, Pair kernel, std::optional<Pair> stride = {}, Pair padding = 0,
                  Pair dilation = 1, bool ceil_mode = false);

}  // namespace quern
