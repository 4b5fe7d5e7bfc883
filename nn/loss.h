// Losses: torch.nn.CrossEntropyLoss. Without state, hence no Module: a function with settings.
#pragma once
#include "quern/ops/loss.h"
#include "quern/tensor/tensor.h"

namespace quern::nn {

/// cross_entropy of logits [N, C, ...] with class indices [N, ...]; those equal to ignore_index do
/// not count.
struct CrossEntropyLoss {
  double label_smoothing = 0;             ///< what all classes share of the target, 0..1
  int64_t ignore_index = -100;            ///< the target that does not count
  Tensor weight = {};                     ///< [C]: how much each class counts; 1 unless given
  Reduction reduction = Reduction::mean;  ///< of the rows' losses

  /// The loss: f32, a number unless the reduction is none.
  Tensor operator()(const Tensor& logits, const Tensor& target) const;
};

}  // namespace quern::nn
