// Normalisation: torch.nn.BatchNorm2d and LayerNorm.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// batch_norm of [N, features, H, W]: by the batch's statistics in training, which also move
/// running_mean and running_var by `momentum`; by those in inference. weight starts as 1 and bias
/// as 0. Error: no features, or (on call) another rank or number of channels.
class BatchNorm2d : public Module {
 public:
  /// As PyTorch unless given.
  explicit BatchNorm2d(int64_t features, double eps = 1e-5, double momentum = 0.1);
  Tensor forward(const Tensor& x) override;
  /// One more in num_batches_tracked: for those who compute forward() otherwise.
  void count_batch();

  double eps, momentum;                            ///< as given
  Tensor weight, bias, running_mean, running_var;  ///< [features]
  Tensor num_batches_tracked;                      ///< i64: batches seen in training
};

/// layer_norm over the last dimensions, of sizes `shape`. weight starts as 1 and bias as 0.
class LayerNorm : public Module {
 public:
  /// As PyTorch unless given.
  explicit LayerNorm(const Shape& shape, double eps = 1e-5);
  Tensor forward(const Tensor& x) override;

  double eps;           ///< as given
  Tensor weight, bias;  ///< of that shape; parameters
};

}  // namespace quern::nn
