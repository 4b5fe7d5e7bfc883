// dropout: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting",
// JMLR'14.
#pragma once
#include "quern/tensor/random.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// In training y = x·keep/(1-p), where each element of `keep` is 0 with probability p, else 1; the
/// same for dx and dy. Otherwise, and for p = 0, `x` itself. `keep` follows from the generator's
/// next stream and the element's logical position, not from format or threads. Errors: p outside
/// 0..1, x not floating.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true,
               Generator& generator = default_generator());

}  // namespace quern
