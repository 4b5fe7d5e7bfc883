#include "quern/nn/conv2d.h"

#include "quern/nn/init.h"
#include "quern/ops/conv2d.h"

namespace quern::nn {

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, const Conv2dOptions& options)
    : options(options) {
  const int64_t groups = options.groups;
  check(
      in_channels >= 1 && out_channels >= 1 && kernel.h >= 1 && kernel.w >= 1, "Conv2d",
      "expected at least one channel and a kernel of at least 1, got {} to {} channels, kernel {}",
      in_channels, out_channels, kernel);
  check(groups >= 1 && in_channels % groups == 0 && out_channels % groups == 0, "Conv2d",
        "groups: expected a divisor of {} and {} channels, got {}", in_channels, out_channels,
        groups);
  weight =
      register_parameter("weight", empty({out_channels, in_channels / groups, kernel.h, kernel.w}));
  bias = register_parameter("bias", options.bias ? empty({out_channels}) : Tensor());
  init::default_(weight, bias);
}

Tensor Conv2d::forward(const Tensor& x) {
  return conv2d(x, weight, bias, options.stride, options.padding, options.dilation, options.groups);
}

}  // namespace quern::nn
