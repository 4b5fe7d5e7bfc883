// Losses: torch.nn.CrossEntropyLoss. Without state, hence no Module: a function with settings.
#pragma once
#include <cstdint>

#include "quern/tensor/tensor.h"

namespace quern::nn {

/// cross_entropy of logits [N, C, ...] with class indices [N, ...], averaged over targets that are
/// not `ignore_index`.
struct CrossEntropyLoss {
  double label_smoothing = 0;
  int64_t ignore_index = -100;

  Tensor operator()(const Tensor& logits, const Tensor& target) const;
};

}  // namespace quern::nn
