#include "quern/nn/activation.h"

#include <cmath>

#include "quern/ops/activation.h"
#include "quern/ops/softmax.h"

namespace quern::nn {

Tensor ReLU::forward(const Tensor& x) { return relu(x); }
Tensor ReLU6::forward(const Tensor& x) { return relu6(x); }
LeakyReLU::LeakyReLU(double slope) : slope(slope) {
  check(!std::isnan(slope), "LeakyReLU", "slope: expected a number, got {}", slope);
}
Tensor LeakyReLU::forward(const Tensor& x) { return leaky_relu(x, slope); }
Tensor Hardswish::forward(const Tensor& x) { return hardswish(x); }
Tensor Hardsigmoid::forward(const Tensor& x) { return hardsigmoid(x); }
Tensor GELU::forward(const Tensor& x) { return gelu(x); }
Tensor SiLU::forward(const Tensor& x) { return silu(x); }
Tensor Sigmoid::forward(const Tensor& x) { return sigmoid(x); }
Tensor Tanh::forward(const Tensor& x) { return tanh(x); }
Tensor Softmax::forward(const Tensor& x) { return softmax(x, dim); }
Tensor LogSoftmax::forward(const Tensor& x) { return log_softmax(x, dim); }

}  // namespace quern::nn
