// Operands of a benchmark, and what their elements are checked with.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::bench {

class Operand {
 public:
  Operand(DType dtype, int64_t count);

  DType dtype() const { return dtype_; }
  int64_t count() const { return count_; }
  int64_t bytes() const { return storage_.bytes(); }
  void* data() const { return storage_.data(); }
  void* at(int64_t i) const { return storage_.data() + i * itemsize(dtype_); }
  double operator[](int64_t i) const;

  /// Integers -2 ... 2: a sum of their products is exact in f32 up to 2^22 terms, in any order.
  void fill_integers(uint32_t seed);
  /// Uniform on [0.1, 1).
  void fill_uniform(uint32_t seed);
  void fill(double value);
  /// Takes it out of all caches.
  void evict() const;

 private:
  template <class F>
  void generate(F f);
  DType dtype_;
  int64_t count_;
  Storage storage_;
};

/// A pseudo-random sequence that is the same everywhere.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>((*this)() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

/// Half the distance from 1 to the next number: the relative error of one rounding.
double unit_roundoff(DType dtype);

/// `value`, rounded as the dtype stores it.
double rounded(DType dtype, double value);

/// Empty if f(i) is for the first, the last and some hundred elements i of `got` in between what it
/// holds; else what is wrong. `bound(i, expected)` is the error allowed.
template <class F, class Bound>
std::string compare_some(const Operand& got, F f, Bound bound) {
  constexpr int64_t kSamples = 200;
  Random random(7);
  for (int64_t s = 0; s < kSamples; ++s) {
    const int64_t i = s == 0 ? 0 : s == 1 ? got.count() - 1 : random.below(got.count());
    const double expected = f(i), found = got[i];
    if (!(std::abs(found - expected) <= bound(i, expected)))
      return fmt::format("element {} is {}, expected {}", i, found, expected);
  }
  return {};
}

/// Empty if `got` is the sum of f(0) ... f(n - 1) but for at most 2n + 8 roundings of each term in
/// f32 (Higham, "Accuracy and stability of numerical algorithms", 3.1); else what is wrong.
template <class F>
std::string compare_sum(const char* what, double got, int64_t n, F f) {
  double sum = 0, magnitude = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double term = f(i);
    sum += term, magnitude += std::abs(term);
  }
  if (std::abs(got - sum) <= static_cast<double>(2 * n + 8) * 0x1p-24 * magnitude) return {};
  return fmt::format("{} is {}, expected {}", what, got, sum);
}

/// As compare_some() where the sum of integers f(i) is exact: it must be f(i), rounded once.
template <class F>
std::string compare_exactly(const Operand& got, F f) {
  return compare_some(
      got, [&](int64_t i) { return rounded(got.dtype(), f(i)); },
      [](int64_t, double) { return 0.0; });
}

}  // namespace quern::bench
