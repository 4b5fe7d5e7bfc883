// Mean and Σ(x - mean)² of many values from those of their parts.
#pragma once
#include <cstdint>

namespace quern::kernels {

/// Takes in the moments of `count_b` more values, for n channels: Chan, Golub & LeVeque,
/// "Algorithms for computing the sample variance", 1983. Those of no values are zeros.
inline void merge_moments(double* mean, double* m2, int64_t count, const double* mean_b,
                          const double* m2_b, int64_t count_b, int64_t n) {
  const double share = static_cast<double>(count_b) / static_cast<double>(count + count_b);
  const double weight = share * static_cast<double>(count);
  for (int64_t i = 0; i < n; ++i) {
    const double delta = mean_b[i] - mean[i];
    mean[i] += delta * share;
    m2[i] += m2_b[i] + delta * delta * weight;
  }
}

}  // namespace quern::kernels
