#include "quern/nn/linear.h"

#include "quern/nn/init.h"
#include "quern/ops/linear.h"

namespace quern::nn {

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias) {
  check(in_features >= 1 && out_features >= 1, "Linear",
        "expected at least one feature in and out, got {} and {}", in_features, out_features);
  weight = register_parameter("weight", empty({out_features, in_features}));
  bias = register_parameter("bias", with_bias ? empty({out_features}) : Tensor());
  init::default_(weight, bias);
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

}  // namespace quern::nn
