// Activations and their slopes on vectors. Included by files with ISA flags, so all of it has
// internal linkage.
#pragma once
#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/math.h"

namespace quern::kernels {
namespace {

inline Vec<float> exponential_of_minus(Vec<float> v) { return Math::exp_of_minus(v); }
inline Vec<double> exponential_of_minus(Vec<double> v) { return xsimd::exp(-v); }

/// NaN passes.
template <class V>
V clamped(V v, V low, V high) {
  return xsimd::select(v <= low, low, xsimd::select(v >= high, high, v));
}

/// The same by bounds that are no NaN, in two instructions. NaN passes: max() and min() give their
/// second operand, or NaN, where either is one.
template <class V>
V bounded(V v, V low, V high) {
  return xsimd::min(high, xsimd::max(low, v));
}

/// What those that only clamp clamp to: infinities where they do not.
struct Bounds {
  float low, high;
  explicit Bounds(Activation a)
      : low(a == Activation::none ? -__builtin_inff() : 0),
        high(a == Activation::relu6 ? 6 : __builtin_inff()) {}
};

template <class V>
V activated(V v, Activation activation) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return xsimd::select(v <= V(0), V(0), v);
    case Activation::relu6: return bounded(v, V(0), V(6));
    case Activation::silu: return quotient(v, V(1) + exponential_of_minus(v));
    case Activation::hardswish: {
      using P = typename V::value_type;
      return v * (bounded(v + V(3), V(0), V(6)) * V(P(1) / 6));
    }
  }
  return v;
}

/// The same for a result that is rounded to T: silu of bf16 in half of the operations.
template <class T, class V>
V activated_as(V v, Activation activation) {
  if constexpr (std::is_same_v<T, bfloat16>)
    if (activation == Activation::silu) return quotient(v, V(1) + Math::rough_exp(-v));
  return activated(v, activation);
}

/// silu of v, and its slope there, by one exponential.
template <class V>
V silu(V v, V& slope) {
  const V s = quotient(V(1), V(1) + exponential_of_minus(v));
  slope = s * fused(v, V(1) - s, V(1));
  return v * s;
}

/// Calls f with the constant that `activation` is.
template <class F>
void as_constant(Activation activation, F f) {
  switch (activation) {
    case Activation::none: return f(std::integral_constant<Activation, Activation::none>{});
    case Activation::relu: return f(std::integral_constant<Activation, Activation::relu>{});
    case Activation::relu6: return f(std::integral_constant<Activation, Activation::relu6>{});
    case Activation::silu: return f(std::integral_constant<Activation, Activation::silu>{});
    case Activation::hardswish:
      return f(std::integral_constant<Activation, Activation::hardswish>{});
  }
}

/// The gradient of v, which became activated(v), from that of the result.
template <class V>
V through(V dy, V v, Activation activation) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return xsimd::select(v <= V(0), V(0), dy);
    case Activation::relu6: return xsimd::select((v <= V(0)) | (v >= V(6)), V(0), dy);
    case Activation::silu: {
      const V s = quotient(V(1), V(1) + exponential_of_minus(v));
      return dy * (s * (V(1) + v * (V(1) - s)));
    }
    case Activation::hardswish: {
      using P = typename V::value_type;
      const V slope = fused(v, V(P(1) / 3), V(P(0.5)));
      return xsimd::select(v <= V(-3), V(0), xsimd::select(v < V(3), dy * slope, dy));
    }
  }
  return dy;
}

}  // namespace
}  // namespace quern::kernels
