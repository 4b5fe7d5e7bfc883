#include "quern/nn/dropout.h"

#include "quern/ops/dropout.h"

namespace quern::nn {

Dropout::Dropout(double p) : p(p) {
  check(p >= 0 && p <= 1, "Dropout", "p: expected 0 to 1, got {}", p);
}

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p, is_training()); }

}  // namespace quern::nn
