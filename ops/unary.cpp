#include "quern/ops/unary.h"

#include <cmath>

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {

using kernels::Binary;
using kernels::Unary;

Tensor neg(const Tensor& x) {
  return record(
      "neg", raw::unary("neg", Unary::neg, x), {x},
      [](const Tensor& dy, Needs) -> Tensors { return {raw::unary("neg", Unary::neg, dy)}; });
}

Tensor abs(const Tensor& x) {
  return record("abs", raw::unary("abs", Unary::abs, x), {x},
                [x = SavedTensor("abs", x)](const Tensor& dy, Needs) -> Tensors {
                  return {raw::binary("abs", Binary::abs_backward_x, dy, x.get())};
                });
}

Tensor exp(const Tensor& input) {
  const Tensor x = autocast::widen(input);
  Tensor y = raw::unary("exp", Unary::exp, x);
  return record("exp", y, {x}, [y = SavedTensor("exp", y)](const Tensor& dy, Needs) -> Tensors {
    return {raw::binary("exp", Binary::mul, dy, y.get())};
  });
}

Tensor log(const Tensor& input) {
  const Tensor x = autocast::widen(input);
  return record("log", raw::unary("log", Unary::log, x), {x},
                [x = SavedTensor("log", x)](const Tensor& dy, Needs) -> Tensors {
                  return {raw::binary("log", Binary::div, dy, x.get())};
                });
}

Tensor sqrt(const Tensor& x) {
  Tensor y = raw::unary("sqrt", Unary::sqrt, x);
  return record("sqrt", y, {x}, [y = SavedTensor("sqrt", y)](const Tensor& dy, Needs) -> Tensors {
    return {raw::binary("sqrt", Binary::sqrt_backward_y, dy, y.get())};
  });
}

Tensor clamp(const Tensor& input, double min, double max) {
  check(!std::isnan(min) && !std::isnan(max), "clamp", "min, max: expected numbers, got {}, {}",
        min, max);
  detail::check_dense("clamp", "x", input);
  const bool whole = std::trunc(min) == min && std::trunc(max) == max;
  const Tensor x = whole || is_floating(input.dtype()) ? input : raw::to(input, DType::f32);
  return record("clamp", raw::unary("clamp", Unary::clamp, x, min, max), {x},
                [=, x = SavedTensor("clamp", x)](const Tensor& dy, Needs) -> Tensors {
                  return {raw::binary("clamp", Binary::clamp_backward_x, dy, x.get(), min, max)};
                });
}

}  // namespace quern
