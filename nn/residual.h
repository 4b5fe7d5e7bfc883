// activation(branch(x) + shortcut(x)): a row of convolutions, each with a batch norm, an activation
// and perhaps a gate after it, and what is added before the last activation. Op by op, or fused to
// one op (ops/fused/conv_chain.h).
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
  /// What the activation's y is multiplied by, of adaptive_avg_pool2d(y, 1). None: nothing.
  std::function<Tensor(const Tensor&)> gate = {};
  /// without the activation and the gate
  Tensor operator()(const Tensor& x) const { return (*norm)((*conv)(x)); }
};

/// The branch and the shortcut of a block.
struct Residual {
  /// [N, C, H, W] to the activation of the sum. Errors: those of the ops.
  Tensor operator()(const Tensor& x) const;

  std::vector<ConvNorm> branch;             ///< at least one; a gate of the last: no shortcut
  bool shortcut = true;                     ///< without: activation(branch(x))
  std::optional<ConvNorm> projection = {};  ///< what x goes through on the shortcut
  bool fuse = true;                         ///< where the modules allow it
};

}  // namespace quern::nn
