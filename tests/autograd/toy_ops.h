// Ops for tests of the engine: through vectors of f64, nothing but record() is quern's.
#pragma once
#include "quern/autograd/node.h"
#include "quern/tensor/raw.h"

namespace quern::test {

template <class F>
Tensor zip(const Tensor& a, const Tensor& b, F f) {
  auto x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) x[i] = f(x[i], y[i]);
  return raw::to(from_vector(x, a.shape()), promote(a.dtype(), b.dtype()));
}

inline Tensor add(const Tensor& a, const Tensor& b) {
  return record("add", zip(a, b, std::plus<>()), {a, b}, [](const Tensor& dy, Needs) -> Tensors {
    return {dy, dy};
  });
}

inline Tensor mul(const Tensor& a, const Tensor& b) {
  return record("mul", zip(a, b, std::multiplies<>()), {a, b},
                [a = SavedTensor("mul", a), b = SavedTensor("mul", b)](const Tensor& dy,
                                                                       Needs needs) -> Tensors {
                  return {needs[0] ? zip(dy, b.get(), std::multiplies<>()) : Tensor(),
                          needs[1] ? zip(dy, a.get(), std::multiplies<>()) : Tensor()};
                });
}

/// factor·x, which saves nothing.
inline Tensor scale(const Tensor& x, double factor) {
  const auto times = [factor](const Tensor& t) {
    return zip(t, t, [factor](double value, double) { return factor * value; });
  };
  return record("scale", times(x), {x},
                [times](const Tensor& dy, Needs) -> Tensors { return {times(dy)}; });
}

inline Tensor sum(const Tensor& x) {
  double total = 0;
  for (const double value : x.to_vector<double>()) total += value;
  return record(
      "sum", full({}, total, x.dtype()), {x},
      [shape = x.shape()](const Tensor& dy, Needs) -> Tensors { return {raw::expand(dy, shape)}; });
}

inline std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }

}  // namespace quern::test
