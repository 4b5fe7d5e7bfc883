// avg_pool2d: the mean of each window.
#pragma once
#include <optional>

#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// y[n,c,oh,ow] = sum of the window at (oh·stride - padding, ow·stride - padding), divided by its
/// size: with count_include_pad the part inside the padded image, else the part inside x.
///   x  [N, C, H, W], bf16, f32 or f64; the output has its dtype and format, sizes as in max_pool2d
/// Errors: rank, dtype, an empty x, kernel or stride < 1, padding not in 0..kernel/2, no output.
Tensor avg_pool2d(const Tensor& x, Pair kernel, std::optional<Pair> stride = {}, Pair padding = 0,
                  bool ceil_mode = false, bool count_include_pad = true);

}  // namespace quern
