#include "quern/nn/flatten.h"

#include "quern/ops/flatten.h"

namespace quern::nn {

Tensor Flatten::forward(const Tensor& x) { return flatten(x, start, end); }

}  // namespace quern::nn
