#include "quern/ops/unary.h"

#include <cmath>

#include "quern/ops/autocast.h"
#include "quern/ops/detail/unary.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {

using detail::by_input, detail::by_output;
using kernels::Binary, kernels::Unary;

Tensor neg(const Tensor& x) {
  return record(
      "neg", raw::unary("neg", Unary::neg, x), {x},
      [](const Tensor& dy, Needs) -> Tensors { return {raw::unary("neg", Unary::neg, dy)}; });
}

Tensor abs(const Tensor& x) { return by_input("abs", Unary::abs, Binary::abs_backward_x, x); }
Tensor exp(const Tensor& x) {
  return by_output("exp", Unary::exp, Binary::mul, autocast::widen(x));
}
Tensor log(const Tensor& x) { return by_input("log", Unary::log, Binary::div, autocast::widen(x)); }
Tensor sqrt(const Tensor& x) { return by_output("sqrt", Unary::sqrt, Binary::sqrt_backward_y, x); }

Tensor clamp(const Tensor& input, double min, double max) {
  check(!std::isnan(min) && !std::isnan(max), "clamp", "min, max: expected numbers, got {}, {}",
        min, max);
  detail::check_dense("clamp", "x", input);
  const bool whole = std::trunc(min) == min && std::trunc(max) == max;
  const Tensor x = whole || is_floating(input.dtype()) ? input : raw::to(input, DType::f32);
  return by_input("clamp", Unary::clamp, Binary::clamp_backward_x, x, min, max);
}

}  // namespace quern
