// Step 3: the library's own. A residual block, whose branch is the steps' and one more batch norm:
// op by op, and as one op.
#pragma once
#include <array>

#include "quern/quern.h"

namespace quern::lessons::step {

using ResidualBlock = std::array<ConvStage, 2>;  // a convolution and its batch norm each

// [library]
inline Tensor convolve_and_norm(const Tensor& x, const ConvStage& s) {
  return batch_norm(conv2d(x, s.weight), {}, {}, s.bn_weight, s.bn_bias, true);
}

inline Tensor op_by_op(const Tensor& x, const ResidualBlock& b) {
  return relu(convolve_and_norm(relu(convolve_and_norm(x, b[0])), b[1]) + x);
}

inline Tensor as_one_op(const Tensor& x, const ResidualBlock& b) {
  return conv_chain(x, {.stages = b, .shortcut = ConvChain::Shortcut::identity}, true);
}
// [end]

}  // namespace quern::lessons::step
