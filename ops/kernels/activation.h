// Activations and their slopes as the references compute them, one number at a time.
#pragma once
#include <cmath>

#include "quern/tensor/types.h"

namespace quern::kernels {

template <class S>
S clamped(S v, S low, S high) {
  return v <= low ? low : v >= high ? high : v;  // NaN passes
}

template <class S>
S activated(S v, Activation activation) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return v <= 0 ? 0 : v;
    case Activation::relu6: return clamped<S>(v, 0, 6);
    case Activation::silu: return v / (1 + std::exp(-v));
    case Activation::hardswish: return v * (clamped<S>(v + 3, 0, 6) / 6);
  }
  return v;
}

/// The gradient of v, which became activated(v), from that of the result.
template <class S>
S through(S dy, S v, Activation activation) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return v <= 0 ? 0 : dy;
    case Activation::relu6: return v <= 0 || v >= 6 ? 0 : dy;
    case Activation::silu: {
      const S s = 1 / (1 + std::exp(-v));
      return dy * (s * (1 + v * (1 - s)));
    }
    case Activation::hardswish: return v <= -3 ? 0 : v < 3 ? dy * (v / 3 + S(0.5)) : dy;
  }
  return dy;
}

}  // namespace quern::kernels
