#include "quern/nn/activation.h"

#include <cmath>

#include "quern/ops/softmax.h"

namespace quern::nn {

LeakyReLU::LeakyReLU(double slope) : slope(slope) {
  check(!std::isnan(slope), "LeakyReLU", "slope: expected a number, got {}", slope);
}
Tensor LeakyReLU::forward(const Tensor& x) { return leaky_relu(x, slope); }
Tensor Softmax::forward(const Tensor& x) { return softmax(x, dim); }
Tensor LogSoftmax::forward(const Tensor& x) { return log_softmax(x, dim); }

}  // namespace quern::nn
