// Linear: torch.nn.Linear.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// y = x·weightᵀ + bias for x [..., in], with a weight [out, in] and a bias [out], which start as
/// init::default_. Error: sizes below 1.
class Linear : public Module {
 public:
  /// Of `in_features` numbers to `out_features`.
  Linear(int64_t in_features, int64_t out_features, bool with_bias = true);
  Tensor forward(const Tensor& x) override;

  Tensor weight, bias;  ///< parameters; the bias undefined where there is none
};

}  // namespace quern::nn
