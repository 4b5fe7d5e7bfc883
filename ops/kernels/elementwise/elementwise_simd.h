// The f32 and bf16 kernels on vectors of xsimd: one source, compiled once an instruction set.
// Streaming passes, bound by memory or by the polynomials of math.h; nothing is unrolled.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/elementwise/elementwise_kernel.h"

namespace quern::kernels {
namespace {

/// Of elements of type T.
template <class T>
struct Formula {
  using F = Vec<float>;
  static F zero_where(xsimd::batch_bool<float> condition, F x) {
    return xsimd::select(condition, F(0.0f), x);
  }

  static constexpr float kInfinity = __builtin_inff();

  static F neg(F x, F, F) { return x ^ F(-0.0f); }
  static F abs(F x, F, F) { return xsimd::abs(x); }
  static F relu(F x, F, F) { return zero_where(x <= F(0.0f), x); }  // NaN passes
  static F clamp(F x, F low, F high) {
    const F raised = xsimd::select(x < low, low, x);
    return xsimd::select(raised > high, high, raised);
  }
  static F sqrt(F x, F, F) { return square_root(x); }
  static F exp(F x, F, F) { return Math::exp(x); }
  static F log(F x, F, F) { return Math::log(x); }
  static F tanh(F x, F, F) { return Math::tanh(x); }
  static F sigmoid(F x, F, F) {
    const F e = Math::exp(F(-0.0f) | x);  // of -|x|: neither overflows
    return quotient(xsimd::select(x < F(0.0f), e, F(1.0f)), F(1.0f) + e);
  }
  static Math::Normal normal(F x) {
    if constexpr (std::is_same_v<T, bfloat16>) return Math::rough_normal(x);
    else return Math::normal(x);
  }
  static F gelu(F x, F, F) { return x * normal(x).below; }
  static F silu(F x, F, F) { return activated_as<T>(x, Activation::silu); }
  static F hardsigmoid(F x, F, F) {
    return quotient(clamp(x + F(3.0f), F(0.0f), F(6.0f)), F(6.0f));
  }
  static F hardswish(F x, F p, F q) { return x * hardsigmoid(x, p, q); }
  static F leaky_relu(F x, F p, F) { return xsimd::select(x > F(0.0f), x, x * p); }
  static F half_power(F x, F p, F) {
    const int twice = static_cast<int>(2 * p.get(0)), size = twice < 0 ? -twice : twice;
    F y(1.0f);
    if (size % 2 != 0) {  // as pow has it, where a root would have -0 and NaN
      x = xsimd::select(x == F(-kInfinity), F(kInfinity), x + F(0.0f));
      y = square_root(x);
    }
    // Before they are multiplied: a power of x may be too small; but of the root, since 1/x may be.
    if (twice < 0) {
      if (size > 1) x = quotient(F(1.0f), x);
      if (size % 2 != 0) y = quotient(F(1.0f), y);
    }
    for (int k = size / 2; k > 0; --k) y = y * x;
    return y;
  }

  static F add(F a, F b, F, F) { return a + b; }
  static F sub(F a, F b, F, F) { return a - b; }
  static F mul(F a, F b, F, F) { return a * b; }
  static F div(F a, F b, F, F) { return quotient(a, b); }
  static F pow(F a, F b, F, F) { return Math::pow(a, b); }
  static F add_scaled(F a, F b, F p, F) { return fused(p, b, a); }
  static F squared_difference(F a, F b, F, F) { return (a - b) * (a - b); }
  static F scaled_difference(F a, F b, F p, F) { return p * (a - b); }
  static F maximum(F a, F b, F, F) { return xsimd::select((a > b) | xsimd::isnan(a), a, b); }
  static F minimum(F a, F b, F, F) { return xsimd::select((a < b) | xsimd::isnan(a), a, b); }

  static F abs_backward_x(F dy, F x, F, F) {
    return zero_where(x == F(0.0f), xsimd::select(x < F(0.0f), dy ^ F(-0.0f), dy));
  }
  static F relu_backward_y(F dy, F y, F, F) { return zero_where(y <= F(0.0f), dy); }
  static F clamp_backward_x(F dy, F x, F low, F high) {
    return xsimd::select((x >= low) & (x <= high), dy, F(0.0f));
  }
  static F hardtanh_backward_y(F dy, F y, F low, F high) {
    return zero_where((y <= low) | (y >= high), dy);
  }
  static F hardsigmoid_backward_x(F dy, F x, F, F) {
    return xsimd::select((x > F(-3.0f)) & (x < F(3.0f)), quotient(dy, F(6.0f)), F(0.0f));
  }
  static F hardswish_backward_x(F dy, F x, F, F) {
    const F slope = fused(x, F(1.0f / 3), F(0.5f));
    return zero_where(x <= F(-3.0f), xsimd::select(x < F(3.0f), dy * slope, dy));
  }
  static F leaky_relu_backward_x(F dy, F x, F p, F) {
    return xsimd::select(x > F(0.0f), dy, dy * p);
  }
  static F sqrt_backward_y(F dy, F y, F, F) { return quotient(F(0.5f) * dy, y); }
  static F tanh_backward_y(F dy, F y, F, F) { return dy * ((F(1.0f) - y) * (F(1.0f) + y)); }
  static F sigmoid_backward_y(F dy, F y, F, F) { return dy * (y * (F(1.0f) - y)); }
  static F gelu_backward_x(F dy, F x, F, F) {
    const Math::Normal at_x = normal(x);
    return dy * fused(F(0.39894228040143268f) * x, at_x.bell, at_x.below);
  }
  static F silu_backward_x(F dy, F x, F, F) {
    const F s = quotient(F(1.0f), F(1.0f) + Math::exp_of_minus(x));
    return dy * (s * (F(1.0f) + x * (F(1.0f) - s)));
  }
  static F half_power_backward_x(F dy, F x, F p, F) {
    return zero_where(p == F(0.0f), dy * (p * half_power(x, p - F(1.0f), p)));
  }

  static F maximum_by_a(F a, F b, F, F) {
    return zero_where(a < b, xsimd::select(a == b, F(0.5f), F(1.0f)));
  }
  static F minimum_by_a(F a, F b, F, F) {
    return zero_where(a > b, xsimd::select(a == b, F(0.5f), F(1.0f)));
  }
  static F pow_by_a(F a, F b, F, F) {
    return zero_where(b == F(0.0f), b * Math::pow(a, b - F(1.0f)));
  }
  static F pow_by_b(F a, F b, F, F) {
    return zero_where((a == F(0.0f)) & (b >= F(0.0f)), Math::pow(a, b) * Math::log(a));
  }
};

template <class T, auto f>
void unary(int64_t n, const void* x_, void* y_, double p_, double q_) {
  if constexpr (std::is_same_v<T, bfloat16> && (f == Formula<T>::neg || f == Formula<T>::abs)) {
    // The sign bit: nothing to be widened and rounded.
    const auto* x = static_cast<const uint16_t*>(x_);
    auto* y = static_cast<uint16_t*>(y_);
    for (int64_t i = 0; i < n; ++i)
      y[i] = static_cast<uint16_t>(f == Formula<T>::neg ? x[i] ^ 0x8000 : x[i] & 0x7fff);
  } else {
    const T* x = static_cast<const T*>(x_);
    T* y = static_cast<T*>(y_);
    const Vec<float> p(static_cast<float>(p_)), q(static_cast<float>(q_));
    each_vector<T>(
        n, [=](int64_t i, int, auto lanes) { lanes.store(y + i, f(lanes.load(x + i), p, q)); });
  }
}

/// body(value, dense operand, results) of each run.
template <class T, class Y, class Body>
void each_run(const Runs& n, const void* values, const T* dense, Y* y, Body body) {
  for (int64_t r = 0; r < n.count; ++r)
    body(static_cast<const float*>(values)[r], dense + r * n.step, y + r * n.size);
}

template <class T, auto f>
void binary(const Runs& n, const void* a_, const void* b_, void* y_, Run mode, double p_,
            double q_) {
  using F = Vec<float>;
  const T *a = static_cast<const T*>(a_), *b = static_cast<const T*>(b_);
  T* y = static_cast<T*>(y_);
  const F p(static_cast<float>(p_)), q(static_cast<float>(q_));
  if (mode == Run::dense_dense) {
    each_vector<T>(n.elements(), [=](int64_t i, int, auto lanes) {
      lanes.store(y + i, f(lanes.load(a + i), lanes.load(b + i), p, q));
    });
  } else if (mode == Run::scalar_dense) {
    each_run(n, a_, b, y, [=](F value, const T* from, T* to) {
      each_vector<T>(n.size, [=](int64_t i, int, auto lanes) {
        lanes.store(to + i, f(value, lanes.load(from + i), p, q));
      });
    });
  } else {
    each_run(n, b_, a, y, [=](F value, const T* from, T* to) {
      each_vector<T>(n.size, [=](int64_t i, int, auto lanes) {
        lanes.store(to + i, f(lanes.load(from + i), value, p, q));
      });
    });
  }
}

// Of bytes, which xsimd has no vectors of widened elements for: loops that compilers make vectors
// of.
struct Compared {
  static bool eq(float a, float b) { return a == b; }
  static bool ne(float a, float b) { return a != b; }
  static bool lt(float a, float b) { return a < b; }
  static bool le(float a, float b) { return a <= b; }
  static bool gt(float a, float b) { return a > b; }
  static bool ge(float a, float b) { return a >= b; }
};

template <class T>
float widened_at(const T* p, int64_t i) {
  float x;
  widen_one(p + i, &x);
  return x;
}

template <class T, auto f>
void comparison(const Runs& n, const void* a_, const void* b_, bool* __restrict y, Run mode) {
  const T *a = static_cast<const T*>(a_), *b = static_cast<const T*>(b_);
  if (mode == Run::dense_dense) {
    for (int64_t i = 0; i < n.elements(); ++i) y[i] = f(widened_at(a, i), widened_at(b, i));
  } else if (mode == Run::scalar_dense) {
    each_run(n, a_, b, y, [=](float value, const T* from, bool* __restrict to) {
      for (int64_t i = 0; i < n.size; ++i) to[i] = f(value, widened_at(from, i));
    });
  } else {
    each_run(n, b_, a, y, [=](float value, const T* from, bool* __restrict to) {
      for (int64_t i = 0; i < n.size; ++i) to[i] = f(widened_at(from, i), value);
    });
  }
}

template <class Word>
void choice(int64_t n, const bool* condition, const void* a_, const void* b_, void* y_, Run mode) {
  const Word *a = static_cast<const Word*>(a_), *b = static_cast<const Word*>(b_);
  Word* y = static_cast<Word*>(y_);
  // All ones or none: without a branch, whatever is loaded from a and b.
  const auto mixed = [condition](Word p, Word q, int64_t i) {
    const Word mask = static_cast<Word>(-static_cast<Word>(condition[i]));
    return static_cast<Word>((p & mask) | (q & static_cast<Word>(~mask)));
  };
  if (mode == Run::dense_dense) {
    for (int64_t i = 0; i < n; ++i) y[i] = mixed(a[i], b[i], i);
  } else if (mode == Run::scalar_dense) {
    for (int64_t i = 0; i < n; ++i) y[i] = mixed(*a, b[i], i);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = mixed(a[i], *b, i);
  }
}

#define QUERN_RECORD(kind, Kind, op, dtype, T) \
  {QUERN_NAMED(#op "_" #dtype), kIsa, Kind::op, DType::dtype, kind<T, Formula<T>::op>},
#define QUERN_RECORDS(kind, Kind, op)      \
  QUERN_RECORD(kind, Kind, op, f32, float) \
  QUERN_RECORD(kind, Kind, op, bf16, bfloat16)

constexpr UnaryKernel kUnary[] = {
#define QUERN_UNARY_NUMBER(op) QUERN_RECORDS(unary, Unary, op)
#define QUERN_UNARY_REAL(op) QUERN_RECORDS(unary, Unary, op)
#include "quern/ops/kernels/elementwise/ops.inc"
};
constexpr BinaryKernel kBinary[] = {
#define QUERN_BINARY_NUMBER(op) QUERN_RECORDS(binary, Binary, op)
#define QUERN_BINARY_REAL(op) QUERN_RECORDS(binary, Binary, op)
#include "quern/ops/kernels/elementwise/ops.inc"
};

constexpr ComparisonKernel kComparisons[] = {
#define QUERN_COMPARED(op, dtype, T) \
  {QUERN_NAMED(#op "_" #dtype), kIsa, Comparison::op, DType::dtype, comparison<T, Compared::op>},
#define QUERN_COMPARISON(op)     \
  QUERN_COMPARED(op, f32, float) \
  QUERN_COMPARED(op, bf16, bfloat16)
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
