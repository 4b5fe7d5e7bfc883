#include "quern/ops/activation.h"

#include <cmath>

#include "quern/ops/detail/unary.h"

namespace quern {

using detail::by_input, detail::by_output;
using kernels::Binary, kernels::Unary;

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return relu(x);
    case Activation::relu6: return relu6(x);
    case Activation::silu: return silu(x);
    case Activation::hardswish: return hardswish(x);
  }
  return x;
}
Tensor relu(const Tensor& x) { return by_output("relu", Unary::relu, Binary::relu_backward_y, x); }
Tensor sigmoid(const Tensor& x) {
  return by_output("sigmoid", Unary::sigmoid, Binary::sigmoid_backward_y, x);
}
Tensor tanh(const Tensor& x) { return by_output("tanh", Unary::tanh, Binary::tanh_backward_y, x); }
Tensor gelu(const Tensor& x) { return by_input("gelu", Unary::gelu, Binary::gelu_backward_x, x); }
Tensor silu(const Tensor& x) { return by_input("silu", Unary::silu, Binary::silu_backward_x, x); }
Tensor relu6(const Tensor& x) {
  return by_output("relu6", Unary::clamp, Binary::hardtanh_backward_y, x, 0, 6);
}
Tensor hardsigmoid(const Tensor& x) {
  return by_input("hardsigmoid", Unary::hardsigmoid, Binary::hardsigmoid_backward_x, x);
}
Tensor hardswish(const Tensor& x) {
  return by_input("hardswish", Unary::hardswish, Binary::hardswish_backward_x, x);
}
Tensor leaky_relu(const Tensor& x, double slope) {
  check(!std::isnan(slope), "leaky_relu", "slope: expected a number, got {}", slope);
  return by_input("leaky_relu", Unary::leaky_relu, Binary::leaky_relu_backward_x, x, slope);
}

}  // namespace quern
