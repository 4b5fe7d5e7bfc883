// The definition of every elementwise function: the oracle of the vector kernels, the last
// candidate of dispatch, and what runs on f64 and integers. Floating dtypes are computed in double
// and rounded once.
#include <cmath>
#include <limits>
#include <type_traits>

#include "quern/ops/kernels/elementwise/elementwise_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// What T is computed in, and what a scalar operand points to.
template <class T>
using Compute = std::conditional_t<std::is_integral_v<T>, T, double>;
template <class T>
using ScalarOperand = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

/// What X adds and multiplies in: integers wrap around, which unsigned ones do by definition.
template <class X>
using Wrapping = typename std::conditional_t<std::is_integral_v<X>, std::make_unsigned<X>,
                                             std::type_identity<X>>::type;

// X is double or an integer.
template <class X>
X neg(X x, X, X) {
  return static_cast<X>(-static_cast<Wrapping<X>>(x));
}
template <class X>
X abs(X x, X p, X q) {
  if constexpr (std::is_unsigned_v<X>) return x;
  else if constexpr (std::is_integral_v<X>) return x < 0 ? neg<X>(x, p, q) : x;
  else return std::abs(x);
}
template <class X>
X relu(X x, X, X) {
  return x <= 0 ? 0 : x;
}
template <class X>
X clamp(X x, X low, X high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
double sqrt(double x, double, double) { return std::sqrt(x); }
double exp(double x, double, double) { return std::exp(x); }
double log(double x, double, double) { return std::log(x); }
double tanh(double x, double, double) { return std::tanh(x); }
double sigmoid(double x, double, double) { return 1 / (1 + std::exp(-x)); }
double normal_cdf(double x) { return 0.5 * std::erfc(x * -0.70710678118654752); }
double gelu(double x, double, double) { return x * normal_cdf(x); }
double silu(double x, double, double) { return x / (1 + std::exp(-x)); }
/// 0 below -3, 1 from 3 on
double hardsigmoid(double x, double, double) { return clamp<double>(x + 3, 0, 6) / 6; }
double hardswish(double x, double, double) { return x * (clamp<double>(x + 3, 0, 6) / 6); }
double leaky_relu(double x, double p, double) { return x > 0 ? x : x * p; }
double half_power(double x, double p, double) { return std::pow(x, p); }

template <class X>
X add(X a, X b, X, X) {
  return static_cast<X>(static_cast<Wrapping<X>>(a) + static_cast<Wrapping<X>>(b));
}
template <class X>
X sub(X a, X b, X, X) {
  return static_cast<X>(static_cast<Wrapping<X>>(a) - static_cast<Wrapping<X>>(b));
}
template <class X>
X mul(X a, X b, X, X) {
  return static_cast<X>(static_cast<Wrapping<X>>(a) * static_cast<Wrapping<X>>(b));
}
template <class X>
X maximum(X a, X b, X, X) {
  return a > b || a != a ? a : b;
}
template <class X>
X minimum(X a, X b, X, X) {
  return a < b || a != a ? a : b;
}
double div(double a, double b, double, double) { return a / b; }
double pow(double a, double b, double, double) { return std::pow(a, b); }
double add_scaled(double a, double b, double p, double) { return std::fma(p, b, a); }
double squared_difference(double a, double b, double, double) { return (a - b) * (a - b); }
double scaled_difference(double a, double b, double p, double) { return p * (a - b); }

double abs_backward_x(double dy, double x, double, double) { return x == 0 ? 0 : x < 0 ? -dy : dy; }
double relu_backward_y(double dy, double y, double, double) { return y <= 0 ? 0 : dy; }
double clamp_backward_x(double dy, double x, double low, double high) {
  return x >= low && x <= high ? dy : 0;
}
double hardtanh_backward_y(double dy, double y, double low, double high) {
  return y <= low || y >= high ? 0 : dy;
}
double hardsigmoid_backward_x(double dy, double x, double, double) {
  return x > -3 && x < 3 ? dy / 6 : 0;
}
double hardswish_backward_x(double dy, double x, double, double) {
  return x <= -3 ? 0 : x < 3 ? dy * (x / 3 + 0.5) : dy;
}
double leaky_relu_backward_x(double dy, double x, double p, double) { return x > 0 ? dy : dy * p; }
double sqrt_backward_y(double dy, double y, double, double) { return 0.5 * dy / y; }
double tanh_backward_y(double dy, double y, double, double) { return dy * ((1 - y) * (1 + y)); }
double sigmoid_backward_y(double dy, double y, double, double) { return dy * (y * (1 - y)); }
double gelu_backward_x(double dy, double x, double, double) {
  return dy * (normal_cdf(x) + x * 0.39894228040143268 * std::exp(-0.5 * x * x));
}
double silu_backward_x(double dy, double x, double, double) {
  const double s = 1 / (1 + std::exp(-x));
  return dy * (s * (1 + x * (1 - s)));
}
double half_power_backward_x(double dy, double x, double p, double) {
  return p == 0 ? 0 : dy * (p * std::pow(x, p - 1));
}

double maximum_by_a(double a, double b, double, double) { return a < b ? 0 : a == b ? 0.5 : 1; }
double minimum_by_a(double a, double b, double, double) { return a > b ? 0 : a == b ? 0.5 : 1; }
double pow_by_a(double a, double b, double, double) { return b == 0 ? 0 : b * std::pow(a, b - 1); }
double pow_by_b(double a, double b, double, double) {
  return a == 0 && b >= 0 ? 0 : std::pow(a, b) * std::log(a);
}

// X is a type of elements widened.
#define QUERN_COMPARED(op, sign) \
  template <class X>             \
  bool op(X a, X b) {            \
    return a sign b;             \
  }
QUERN_COMPARED(eq, ==)
QUERN_COMPARED(ne, !=)
QUERN_COMPARED(lt, <)
QUERN_COMPARED(le, <=)
QUERN_COMPARED(gt, >)
QUERN_COMPARED(ge, >=)

template <class T>
Compute<T> bound(double p) {
  if constexpr (std::is_integral_v<T>) {  // of an integer's clamp: its range, where p lies beyond
    using Limits = std::numeric_limits<T>;
    if (!(p > static_cast<double>(Limits::lowest()))) return Limits::lowest();
    if (p >= static_cast<double>(Limits::max())) return Limits::max();
  }
  return static_cast<Compute<T>>(p);
}

template <class T, auto f>
void unary(int64_t n, const void* x_, void* y_, double p_, double q_) {
  const T* x = static_cast<const T*>(x_);
  T* y = static_cast<T*>(y_);
  const Compute<T> p = bound<T>(p_), q = bound<T>(q_);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(f(static_cast<Compute<T>>(x[i]), p, q));
}

/// Element i of an operand, which may be one value a run.
template <class T>
Compute<T> operand(const void* p, bool scalar, int64_t i, const Runs& n) {
  const int64_t run = i / n.size;
  return scalar ? static_cast<Compute<T>>(static_cast<const ScalarOperand<T>*>(p)[run])
                : static_cast<Compute<T>>(static_cast<const T*>(p)[run * n.step + i % n.size]);
}

template <class T, auto f>
void binary(const Runs& n, const void* a, const void* b, void* y_, Run mode, double p_, double q_) {
  T* y = static_cast<T*>(y_);
  const Compute<T> p = bound<T>(p_), q = bound<T>(q_);
  for (int64_t i = 0; i < n.elements(); ++i)
    y[i] = static_cast<T>(f(operand<T>(a, mode == Run::scalar_dense, i, n),
                            operand<T>(b, mode == Run::dense_scalar, i, n), p, q));
}

template <class T, auto f>
void comparison(const Runs& n, const void* a, const void* b, bool* y, Run mode) {
  for (int64_t i = 0; i < n.elements(); ++i)
    y[i] = f(operand<T>(a, mode == Run::scalar_dense, i, n),
             operand<T>(b, mode == Run::dense_scalar, i, n));
}

template <class Word>
void choice(int64_t n, const bool* condition, const void* a, const void* b, void* y, Run mode) {
  for (int64_t i = 0; i < n; ++i)
    static_cast<Word*>(y)[i] = condition[i]
                                   ? static_cast<const Word*>(a)[mode == Run::scalar_dense ? 0 : i]
                                   : static_cast<const Word*>(b)[mode == Run::dense_scalar ? 0 : i];
}

#define QUERN_RECORD(kind, Kind, op, T, dtype, f) \
  {QUERN_NAMED(#op "_" #dtype), kIsa, Kind::op, DType::dtype, kind<T, f>},
#define QUERN_REAL(kind, Kind, op, f)             \
  QUERN_RECORD(kind, Kind, op, float, f32, f)     \
  QUERN_RECORD(kind, Kind, op, bfloat16, bf16, f) \
  QUERN_RECORD(kind, Kind, op, double, f64, f)
#define QUERN_NUMBER(kind, Kind, op)                      \
  QUERN_REAL(kind, Kind, op, op<double>)                  \
  QUERN_RECORD(kind, Kind, op, int64_t, i64, op<int64_t>) \
  QUERN_RECORD(kind, Kind, op, int32_t, i32, op<int32_t>) \
  QUERN_RECORD(kind, Kind, op, uint8_t, u8, op<uint8_t>)

constexpr UnaryKernel kUnary[] = {
#define QUERN_UNARY_NUMBER(op) QUERN_NUMBER(unary, Unary, op)
#define QUERN_UNARY_REAL(op) QUERN_REAL(unary, Unary, op, op)
#include "quern/ops/kernels/elementwise/ops.inc"
};
constexpr BinaryKernel kBinary[] = {
#define QUERN_BINARY_NUMBER(op) QUERN_NUMBER(binary, Binary, op)
#define QUERN_BINARY_REAL(op) QUERN_REAL(binary, Binary, op, op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

#define QUERN_COMPARISON_RECORD(op, T, dtype) \
  {QUERN_NAMED(#op "_" #dtype), kIsa, Comparison::op, DType::dtype, comparison<T, op<Compute<T>>>},
constexpr ComparisonKernel kComparisons[] = {
#define QUERN_COMPARISON(op)                  \
  QUERN_COMPARISON_RECORD(op, float, f32)     \
  QUERN_COMPARISON_RECORD(op, bfloat16, bf16) \
  QUERN_COMPARISON_RECORD(op, double, f64)    \
  QUERN_COMPARISON_RECORD(op, int64_t, i64)   \
  QUERN_COMPARISON_RECORD(op, int32_t, i32)   \
  QUERN_COMPARISON_RECORD(op, uint8_t, u8)
#include "quern/ops/kernels/elementwise/ops.inc"
};
constexpr ChoiceKernel kChoices[] = {
    {QUERN_NAMED("where_8"), kIsa, 1, choice<uint8_t>},
    {QUERN_NAMED("where_16"), kIsa, 2, choice<uint16_t>},
    {QUERN_NAMED("where_32"), kIsa, 4, choice<uint32_t>},
    {QUERN_NAMED("where_64"), kIsa, 8, choice<uint64_t>},
};

}  // namespace

QUERN_KERNELS(UnaryKernel, unary, kUnary)
QUERN_KERNELS(BinaryKernel, binary, kBinary)
QUERN_KERNELS(ComparisonKernel, comparison, kComparisons)
QUERN_KERNELS(ChoiceKernel, choice, kChoices)

}  // namespace quern::kernels
