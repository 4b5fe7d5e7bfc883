#include "quern/ops/binary.h"

#include <cmath>

#include "quern/ops/autocast.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/detail/unary.h"
#include "quern/ops/sum.h"

namespace quern {
namespace {

using kernels::Binary;
using kernels::Unary;

/// Keeps t for the gradient of `other` only.
SavedTensor save_for(std::string_view op, const Tensor& other, const Tensor& t) {
  return other.requires_grad() ? SavedTensor(op, t) : SavedTensor();
}

Tensor times(std::string_view op, const Tensor& a, const Tensor& b) {
  return raw::binary(op, Binary::mul, a, b);
}
Tensor negative(std::string_view op, const Tensor& x) { return raw::unary(op, Unary::neg, x); }

/// f(a, b), which is one of them; `share`: the part of the gradient that the first one takes.
Tensor extreme(std::string_view op, Binary f, Binary share, const Tensor& a, const Tensor& b) {
  return record(op, raw::binary(op, f, a, b), {a, b},
                [=, a = SavedTensor(op, a), b = SavedTensor(op, b)](const Tensor& dy,
                                                                    Needs needs) -> Tensors {
                  const auto gradient = [&](const Tensor& mine, const Tensor& other) {
                    const Tensor part = raw::binary(op, share, mine, other);
                    return raw::sum_to(times(op, dy, part), mine.shape());
                  };
                  return {needs[0] ? gradient(a.get(), b.get()) : Tensor(),
                          needs[1] ? gradient(b.get(), a.get()) : Tensor()};
                });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  Tensor y = raw::binary("add", Binary::add, a, b);
  return record(
      "add", y, {a, b}, [a = a.shape(), b = b.shape()](const Tensor& dy, Needs needs) -> Tensors {
        return {needs[0] ? raw::sum_to(dy, a) : Tensor(), needs[1] ? raw::sum_to(dy, b) : Tensor()};
      });
}

Tensor add(const Tensor& a, double b) {
  return record("add", raw::binary("add", Binary::add, a, b), {a},
                [](const Tensor& dy, Needs) -> Tensors { return {dy}; });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  Tensor y = raw::binary("sub", Binary::sub, a, b);
  return record("sub", y, {a, b},
                [a = a.shape(), b = b.shape()](const Tensor& dy, Needs needs) -> Tensors {
                  return {needs[0] ? raw::sum_to(dy, a) : Tensor(),
                          needs[1] ? negative("sub", raw::sum_to(dy, b)) : Tensor()};
                });
}

Tensor sub(const Tensor& a, double b) {
  return record("sub", raw::binary("sub", Binary::sub, a, b), {a},
                [](const Tensor& dy, Needs) -> Tensors { return {dy}; });
}

Tensor sub(double a, const Tensor& b) {
  return record("sub", raw::binary("sub", Binary::sub, a, b), {b},
                [](const Tensor& dy, Needs) -> Tensors { return {negative("sub", dy)}; });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  Tensor y = times("mul", a, b);
  return record("mul", y, {a, b},
                [a_shape = a.shape(), b_shape = b.shape(), a = save_for("mul", b, a),
                 b = save_for("mul", a, b)](const Tensor& dy, Needs needs) -> Tensors {
                  const auto gradient = [&](const SavedTensor& other, const Shape& shape) {
                    return raw::sum_to("mul", Binary::mul, dy, other.get(), shape);
                  };
                  return {needs[0] ? gradient(b, a_shape) : Tensor(),
                          needs[1] ? gradient(a, b_shape) : Tensor()};
                });
}

Tensor mul(const Tensor& a, double b) {
  return record(
      "mul", raw::binary("mul", Binary::mul, a, b), {a},
      [b](const Tensor& dy, Needs) -> Tensors { return {raw::binary("mul", Binary::mul, dy, b)}; });
}

Tensor div(const Tensor& a, const Tensor& b) {
  Tensor y = raw::binary("div", Binary::div, a, b);
  return record("div", y, {a, b},
                [a_shape = a.shape(), b = SavedTensor("div", b), y = save_for("div", b, y)](
                    const Tensor& dy, Needs needs) -> Tensors {
                  const Tensor da = raw::binary("div", Binary::div, dy, b.get());
                  if (!needs[1]) return {raw::sum_to(da, a_shape), Tensor()};
                  const Tensor db = raw::sum_to(times("div", da, y.get()), b.get().shape());
                  return {needs[0] ? raw::sum_to(da, a_shape) : Tensor(), negative("div", db)};
                });
}

Tensor div(const Tensor& a, double b) {
  return record(
      "div", raw::binary("div", Binary::div, a, b), {a},
      [b](const Tensor& dy, Needs) -> Tensors { return {raw::binary("div", Binary::div, dy, b)}; });
}

Tensor div(double a, const Tensor& b) {
  Tensor y = raw::binary("div", Binary::div, a, b);
  return record(
      "div", y, {b},
      [b = SavedTensor("div", b), y = SavedTensor("div", y)](const Tensor& dy, Needs) -> Tensors {
        const Tensor slope = raw::binary("div", Binary::div, y.get(), b.get());
        return {negative("div", times("div", dy, slope))};
      });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  return extreme("maximum", Binary::maximum, Binary::maximum_by_a, a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return extreme("minimum", Binary::minimum, Binary::minimum_by_a, a, b);
}

Tensor pow(const Tensor& base, const Tensor& exponent) {
  const Tensor a = autocast::widen(base), b = autocast::widen(exponent);
  Tensor y = raw::binary("pow", Binary::pow, a, b);
  return record("pow", y, {a, b},
                [a = SavedTensor("pow", a), b = SavedTensor("pow", b)](const Tensor& dy,
                                                                       Needs needs) -> Tensors {
                  const auto gradient = [&](Binary partial, const Tensor& of) {
                    const Tensor slope = raw::binary("pow", partial, a.get(), b.get());
                    return raw::sum_to(times("pow", dy, slope), of.shape());
                  };
                  return {needs[0] ? gradient(Binary::pow_by_a, a.get()) : Tensor(),
                          needs[1] ? gradient(Binary::pow_by_b, b.get()) : Tensor()};
                });
}

Tensor pow(const Tensor& base, double b) {
  const Tensor a = autocast::widen(base);
  // The exponents most met, and where their derivatives have them.
  const bool simple = 2 * b == std::trunc(2 * b) && b >= -2 && b <= 3;
  if (simple)
    return detail::by_input("pow", Unary::half_power, Binary::half_power_backward_x, a, b);
  return record("pow", raw::binary("pow", Binary::pow, a, b), {a},
                [b, a = SavedTensor("pow", a)](const Tensor& dy, Needs) -> Tensors {
                  return {times("pow", dy, raw::binary("pow", Binary::pow_by_a, a.get(), b))};
                });
}

}  // namespace quern
