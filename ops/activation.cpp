#include "quern/ops/activation.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/elementwise.h"

namespace quern {
namespace {

using kernels::Binary;
using kernels::Unary;

/// y = f(x), with a derivative that is told by y: x need not be kept.
Tensor by_output(std::string_view op, Unary f, Binary backward, const Tensor& x) {
  Tensor y = raw::unary(op, f, x);
  return record(op, y, {x},
                [op, backward, y = SavedTensor(op, y)](const Tensor& dy, Needs) -> Tensors {
                  return {raw::binary(op, backward, dy, y.get())};
                });
}

/// y = f(x), with a derivative that needs x.
Tensor by_input(std::string_view op, Unary f, Binary backward, const Tensor& x) {
  return record(op, raw::unary(op, f, x), {x},
                [op, backward, x = SavedTensor(op, x)](const Tensor& dy, Needs) -> Tensors {
                  return {raw::binary(op, backward, dy, x.get())};
                });
}

}  // namespace

Tensor relu(const Tensor& x) { return by_output("relu", Unary::relu, Binary::relu_backward_y, x); }
Tensor sigmoid(const Tensor& x) {
  return by_output("sigmoid", Unary::sigmoid, Binary::sigmoid_backward_y, x);
}
Tensor tanh(const Tensor& x) { return by_output("tanh", Unary::tanh, Binary::tanh_backward_y, x); }
Tensor gelu(const Tensor& x) { return by_input("gelu", Unary::gelu, Binary::gelu_backward_x, x); }
Tensor silu(const Tensor& x) { return by_input("silu", Unary::silu, Binary::silu_backward_x, x); }

}  // namespace quern
