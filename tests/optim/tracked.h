// A number with a bound on its error: what a computation with unit roundoff u can be off from the
// exact result. Every operation adds u·|result| to what its operands pass on (Higham, "Accuracy and
// stability of numerical algorithms", 3.3), so a formula written in Tracked derives the tolerance
// of its own test. Fused operations round less often and stay within.
#pragma once
#include <cmath>

namespace quern::testing {

struct Tracked {
  long double value = 0, error = 0;
  long double u = 0;  // unit roundoff; 0 for an exact operand

  /// An input, which is exactly representable.
  static Tracked exact(double value) { return {value, 0, 0}; }
  /// A constant that is rounded to the format once.
  static Tracked constant(long double value, long double u) {
    return {value, u * std::abs(value), u};
  }

  bool covers(double computed) const { return std::abs(computed - value) <= error; }
};

/// The result of one rounded operation: its exact value, what the operands' errors make of it.
inline Tracked rounded(long double value, long double error, long double u) {
  return {value, error + u * (std::abs(value) + error), u};
}

inline long double unit(const Tracked& a, const Tracked& b) { return std::max(a.u, b.u); }
inline Tracked operator+(const Tracked& a, const Tracked& b) {
  return rounded(a.value + b.value, a.error + b.error, unit(a, b));
}
inline Tracked operator-(const Tracked& a, const Tracked& b) {
  return rounded(a.value - b.value, a.error + b.error, unit(a, b));
}
inline Tracked operator*(const Tracked& a, const Tracked& b) {
  return rounded(a.value * b.value,
                 std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error,
                 unit(a, b));
}
inline Tracked operator/(const Tracked& a, const Tracked& b) {
  const long double quotient = a.value / b.value;
  return rounded(quotient, (a.error + std::abs(quotient) * b.error) / (std::abs(b.value) - b.error),
                 unit(a, b));
}
inline Tracked sqrt(const Tracked& a) {
  const long double root = std::sqrt(a.value);
  const long double lowest = std::sqrt(std::max(0.0L, a.value - a.error));
  return rounded(root, a.error == 0 ? 0 : a.error / (root + lowest), a.u);
}

inline Tracked abs(const Tracked& a) { return {std::abs(a.value), a.error, a.u}; }
inline Tracked max(const Tracked& a, const Tracked& b) {
  return {std::max(a.value, b.value), std::max(a.error, b.error), unit(a, b)};
}
inline Tracked min(const Tracked& a, const Tracked& b) {
  return {std::min(a.value, b.value), std::max(a.error, b.error), unit(a, b)};
}

}  // namespace quern::testing
