// The f32 and bf16 kernels on a vector type V of ops/kernels/simd/: one source, compiled once an
// instruction set. Streaming passes, bound by memory or by sleef's polynomials; nothing is
// unrolled.
#pragma once
#include "quern/ops/kernels/elementwise/elementwise_records.h"
#include "quern/ops/kernels/simd/float_vector.h"

namespace quern::kernels {
namespace {

template <class V>
struct Formula {
  using F = typename V::F;
  static F zero_where(xsimd::batch_bool<float, typename F::arch_type> condition, F x) {
    return xsimd::select(condition, F(0.0f), x);
  }

  static F neg(F x, F, F) { return x ^ F(-0.0f); }
  static F abs(F x, F, F) { return xsimd::abs(x); }
  static F relu(F x, F, F) { return zero_where(x <= F(0.0f), x); }  // NaN passes
  static F clamp(F x, F low, F high) {
    const F raised = xsimd::select(x < low, low, x);
    return xsimd::select(raised > high, high, raised);
  }
  static F sqrt(F x, F, F) { return xsimd::sqrt(x); }
  static F exp(F x, F, F) { return V::exp(x); }
  static F log(F x, F, F) { return V::log(x); }
  static F tanh(F x, F, F) { return V::tanh(x); }
  static F sigmoid(F x, F, F) { return F(1.0f) / (F(1.0f) + V::exp(-x)); }
  static F normal_cdf(F x) { return F(0.5f) * (F(1.0f) + V::erf(x * F(0.70710678118654752f))); }
  static F gelu(F x, F, F) { return x * normal_cdf(x); }
  static F silu(F x, F, F) { return x / (F(1.0f) + V::exp(-x)); }

  static F add(F a, F b, F, F) { return a + b; }
  static F sub(F a, F b, F, F) { return a - b; }
  static F mul(F a, F b, F, F) { return a * b; }
  static F div(F a, F b, F, F) { return a / b; }
  static F pow(F a, F b, F, F) { return V::pow(a, b); }
  static F add_scaled(F a, F b, F p, F) { return xsimd::fma(p, b, a); }
  static F maximum(F a, F b, F, F) { return xsimd::select((a > b) | (a != a), a, b); }

  static F abs_backward_x(F dy, F x, F, F) {
    return zero_where(x == F(0.0f), xsimd::select(x < F(0.0f), dy ^ F(-0.0f), dy));
  }
  static F relu_backward_y(F dy, F y, F, F) { return zero_where(y <= F(0.0f), dy); }
  static F clamp_backward_x(F dy, F x, F low, F high) {
    return xsimd::select((x >= low) & (x <= high), dy, F(0.0f));
  }
  static F sqrt_backward_y(F dy, F y, F, F) { return F(0.5f) * dy / y; }
  static F tanh_backward_y(F dy, F y, F, F) { return dy * ((F(1.0f) - y) * (F(1.0f) + y)); }
  static F sigmoid_backward_y(F dy, F y, F, F) { return dy * (y * (F(1.0f) - y)); }
  static F gelu_backward_x(F dy, F x, F, F) {
    const F density = F(0.39894228040143268f) * V::exp(F(-0.5f) * x * x);
    return dy * (normal_cdf(x) + x * density);
  }
  static F silu_backward_x(F dy, F x, F, F) {
    const F s = F(1.0f) / (F(1.0f) + V::exp(-x));
    return dy * (s * (F(1.0f) + x * (F(1.0f) - s)));
  }

  static F maximum_by_a(F a, F b, F, F) {
    return zero_where(a < b, xsimd::select(a == b, F(0.5f), F(1.0f)));
  }
  static F pow_by_a(F a, F b, F, F) { return zero_where(b == F(0.0f), b * V::pow(a, b - F(1.0f))); }
  static F pow_by_b(F a, F b, F, F) {
    return zero_where((a == F(0.0f)) & (b >= F(0.0f)), V::pow(a, b) * V::log(a));
  }
};

template <class V, class T, auto f>
void unary(int64_t n, const void* x_, void* y_, double p_, double q_) {
  using F = typename V::F;
  const T* x = static_cast<const T*>(x_);
  T* y = static_cast<T*>(y_);
  const F p(static_cast<float>(p_)), q(static_cast<float>(q_));
  int64_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) V::store(y + i, f(V::load(x + i), p, q));
  if (i < n) store_first<V>(y + i, f(load_first<V>(x + i, n - i), p, q), n - i);
}

template <class V, class T>
struct Dense {
  const T* data;
  typename V::F at(int64_t i) const { return V::load(data + i); }
  typename V::F first_at(int64_t i, int64_t n) const { return load_first<V>(data + i, n); }
};

template <class V>
struct Scalar {
  typename V::F value;
  typename V::F at(int64_t) const { return value; }
  typename V::F first_at(int64_t, int64_t) const { return value; }
};

template <class V, class T, auto f, class A, class B>
void binary_run(int64_t n, A a, B b, T* y, double p_, double q_) {
  using F = typename V::F;
  const F p(static_cast<float>(p_)), q(static_cast<float>(q_));
  int64_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) V::store(y + i, f(a.at(i), b.at(i), p, q));
  if (i < n) store_first<V>(y + i, f(a.first_at(i, n - i), b.first_at(i, n - i), p, q), n - i);
}

template <class V, class T, auto f>
void binary(int64_t n, const void* a, const void* b, void* y_, Run mode, double p, double q) {
  using F = typename V::F;
  T* y = static_cast<T*>(y_);
  const Dense<V, T> dense_a{static_cast<const T*>(a)}, dense_b{static_cast<const T*>(b)};
  switch (mode) {
    case Run::dense_dense:
      return binary_run<V, T, f>(n, dense_a, dense_b, y, p, q);
    case Run::scalar_dense:
      return binary_run<V, T, f>(n, Scalar<V>{F(*static_cast<const float*>(a))}, dense_b, y, p, q);
    case Run::dense_scalar:
      return binary_run<V, T, f>(n, dense_a, Scalar<V>{F(*static_cast<const float*>(b))}, y, p, q);
  }
}

}  // namespace
}  // namespace quern::kernels
