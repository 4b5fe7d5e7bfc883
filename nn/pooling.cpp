#include "quern/nn/pooling.h"

#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/avg_pool2d.h"
#include "quern/ops/max_pool2d.h"

namespace quern::nn {

Tensor MaxPool2d::forward(const Tensor& x) {
  return max_pool2d(x, kernel, options.stride, options.padding, options.dilation,
                    options.ceil_mode);
}

Tensor AvgPool2d::forward(const Tensor& x) {
  return avg_pool2d(x, kernel, options.stride, options.padding, options.ceil_mode,
                    options.count_include_pad);
}

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) { return adaptive_avg_pool2d(x, output_size); }

}  // namespace quern::nn
