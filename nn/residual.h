// activation(branch(x) + shortcut(x)): a row of convolutions, each with a batch norm and an
// activation after it, and what is added before the last one. Op by op, or fused to one op
// (ops/fused/conv_chain.h).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "quern/nn/conv2d.h"
#include "quern/nn/norm.h"
#include "quern/ops/activation.h"

namespace quern::nn {

/// A convolution and the batch norm after it, children of some module, and what follows them.
struct ConvNorm {
  Conv2d* conv;                              ///< a child
  BatchNorm2d* norm;                         ///< a child
  Activation activation = Activation::relu;  ///< what follows
  std::string name = {};  ///< of the convolution, within the module; "": not told
  /// without the activation
  Tensor operator()(const Tensor& x) const { return (*norm)((*conv)(x)); }
};

/// The branch and the shortcut of a block, or the branch and its gate.
struct Residual {
  /// [N, C, H, W] to the activation of the sum. Errors: those of the ops.
  Tensor operator()(const Tensor& x) const;

  std::vector<ConvNorm> branch;             ///< at least one
  bool shortcut = true;                     ///< without: activation(branch(x))
  std::optional<ConvNorm> projection = {};  ///< what x goes through on the shortcut
  /// Without a shortcut: what the output y is multiplied by, of adaptive_avg_pool2d(y, 1).
  std::function<Tensor(const Tensor&)> gate = {};
  bool fuse = true;  ///< where the modules allow it
};

}  // namespace quern::nn
