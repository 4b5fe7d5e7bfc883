#include "quern/nn/dropout.h"

#include "quern/ops/binary.h"
#include "quern/ops/dropout.h"

namespace quern::nn {

Dropout::Dropout(double p) : p(p) {
  check(p >= 0 && p <= 1, "Dropout", "p: expected 0 to 1, got {}", p);
}

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p, is_training()); }

StochasticDepth::StochasticDepth(double p) : p(p) {
  check(p >= 0 && p < 1, "StochasticDepth", "p: expected 0 to less than 1, got {}", p);
}

Tensor StochasticDepth::forward(const Tensor& x) {
  if (!drops()) return x;
  check(x.defined() && x.dim() >= 1, "StochasticDepth", "input: expected [N,...], got {}", x);
  Shape each = Shape::filled(x.dim(), 1);
  each[0] = x.size(0);
  return x * dropout(ones(each, x.dtype()), p);
}

}  // namespace quern::nn
