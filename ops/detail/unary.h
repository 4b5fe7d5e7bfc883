// Functions of each element with their gradients, which read as dy, and the output or the input.
#pragma once
#include "quern/autograd/node.h"
#include "quern/ops/detail/elementwise.h"

namespace quern::detail {

/// y = f(x; p, q), whose gradient backward(dy, y; p, q) is told by y: x need not be kept.
inline Tensor by_output(std::string_view op, kernels::Unary f, kernels::Binary backward,
                        const Tensor& x, double p = 0, double q = 0) {
  Tensor y = raw::unary(op, f, x, p, q);
  return record(op, y, {x}, [=, y = SavedTensor(op, y)](const Tensor& dy, Needs) -> Tensors {
    return {raw::binary(op, backward, dy, y.get(), p, q)};
  });
}

/// y = f(x; p, q), whose gradient backward(dy, x; p, q) needs x.
inline Tensor by_input(std::string_view op, kernels::Unary f, kernels::Binary backward,
                       const Tensor& x, double p = 0, double q = 0) {
  return record(op, raw::unary(op, f, x, p, q), {x},
                [=, x = SavedTensor(op, x)](const Tensor& dy, Needs) -> Tensors {
                  return {raw::binary(op, backward, dy, x.get(), p, q)};
                });
}

}  // namespace quern::detail
