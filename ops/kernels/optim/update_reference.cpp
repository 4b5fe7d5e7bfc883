// The updates on numbers: the oracle, and what runs for f64 parameters.
#include <cmath>

#include "quern/ops/kernels/optim/update_kernel.h"

namespace quern::kernels {
namespace {

template <class S>
S constant(double x) {
  return static_cast<S>(x);
}
/// Here rounded twice: the oracle's bounds cover either.
template <class S>
S fused(S a, S b, S c) {
  return a * b + c;
}
template <class S>
S fused_minus(S a, S b, S c) {
  return c - a * b;
}
template <class S>
S quotient(S a, S b) {
  return a / b;
}
template <class S>
S square_root(S x) {
  return std::sqrt(x);
}
template <class S>
S magnitude(S x) {
  return std::abs(x);
}
/// b where it is NaN.
template <class S>
S larger(S a, S b) {
  return a > b ? a : b;
}
template <class S>
S smaller(S a, S b) {
  return a < b ? a : b;
}
template <class S>
S where_positive(S x, S yes, S no) {
  return x > 0 ? yes : no;
}

}  // namespace
}  // namespace quern::kernels

#include "quern/ops/kernels/optim/formulas.h"

namespace quern::kernels {
namespace {

template <class Step, class S>
void run(const Step& step, const UpdateSpan& span) {
  const Step o = step;  // no store changes a copy
  const int states = states_of(o);
  S* param = static_cast<S*>(span.param);
  const S* grad = static_cast<const S*>(span.grad);
  S* first = static_cast<S*>(span.state[0]);
  S* second = static_cast<S*>(span.state[1]);
  for (int64_t i = 0; i < span.n; ++i) {
    S p = param[i], a = states > 0 ? first[i] : S{}, b = states > 1 ? second[i] : S{};
    update(o, p, grad[i], a, b);
    param[i] = p;
    if (states > 0) first[i] = a;
    if (states > 1) second[i] = b;
  }
}

}  // namespace

#define QUERN_TYPES(Step, family)                                          \
  {                                                                        \
    {QUERN_NAMED(family "_f32"), kIsa, DType::f32, run<Step, float>},      \
        {QUERN_NAMED(family "_f64"), kIsa, DType::f64, run<Step, double>}, \
  }
QUERN_FORMULAS(QUERN_TYPES)

}  // namespace quern::kernels
