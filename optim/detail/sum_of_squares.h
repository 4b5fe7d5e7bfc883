// Sums of squares, in f64.
#pragma once
#include <cstdint>

namespace quern::optim {

/// Of numbers that come in runs. How these are cut changes no bit.
class SumOfSquares {
 public:
  template <class T>
  void add(const T* x, int64_t n) {
    int64_t i = 0;
    for (; i < n && next_ != 0; ++i) add(x[i]);
    for (; i + kLanes <= n; i += kLanes)
      for (int j = 0; j < kLanes; ++j) {
        const double value = x[i + j];
        sums_[j] += value * value;
      }
    for (; i < n; ++i) add(x[i]);
  }
  double value() const {
    double sum = 0;
    for (const double s : sums_) sum += s;
    return sum;
  }

 private:
  static constexpr int kLanes = 8;  // partial sums, which the compiler keeps in vectors
  void add(double value) {
    sums_[next_] += value * value;
    next_ = (next_ + 1) % kLanes;
  }

  double sums_[kLanes] = {};
  int next_ = 0;
};

}  // namespace quern::optim
