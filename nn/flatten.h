// Flatten: torch.nn.Flatten.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// Dimensions `start` to `end`, both included, become one: [N, C, H, W] becomes [N, C·H·W].
class Flatten : public Module {
 public:
  /// All but the first unless given.
  explicit Flatten(int64_t start = 1, int64_t end = -1) : start(start), end(end) {}
  Tensor forward(const Tensor& x) override;

  int64_t start, end;  ///< negative: from the last
};

}  // namespace quern::nn
