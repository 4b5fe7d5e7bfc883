#include "quern/nn/loss.h"

namespace quern::nn {

Tensor CrossEntropyLoss::operator()(const Tensor& logits, const Tensor& target) const {
  return cross_entropy(logits, target, weight, ignore_index, reduction, label_smoothing);
}

}  // namespace quern::nn
