#include "quern/nn/activation.h"

#include "quern/ops/activation.h"

namespace quern::nn {

Tensor ReLU::forward(const Tensor& x) { return relu(x); }

}  // namespace quern::nn
