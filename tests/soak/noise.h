// Rounding enlarged: Parker, "Monte Carlo arithmetic", 1997. In a reference that runs with noise
// on, each operand that passes through noise() is changed, element by element, by a random part of
// it, and its gradient by another: a kernel rounds the terms of a backward pass apart from those of
// the forward pass.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern::soak {

constexpr double kNoise =
    0x1p-24;  // the standard deviation of the part: small against 1, large against f64's roundoff

/// Switches noise on for a scope.
class Noise {
 public:
  explicit Noise(uint64_t seed);
  ~Noise();
};

/// x, or with noise on x·(1 + part); `by_largest`: x + part·max|x|.
Tensor noise(const Tensor& x, bool by_largest = false);

}  // namespace quern::soak
