// Mean and squared deviations of a run of elements, once an instruction set: two passes over what
// the first has brought into the cache.
#pragma once
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// The moments of n values from Σd and Σd², d = x - pivot. The pivot is the mean up to rounding,
/// and the correction by Σd makes that not matter (Chan, Golub & LeVeque, 1983).
inline void corrected_moments(double n, double pivot, double d, double d2, double* mean,
                              double* m2) {
  *mean = pivot + d / n;
  *m2 = d2 - d * d / n;
}

template <class V>
auto sum_of_four(const V (&v)[4]) {
  return xsimd::hadd((v[0] + v[1]) + (v[2] + v[3]));
}

template <class T>
void run_moments(const T* x, int64_t n, double* mean, double* m2) {
  using V = Vec<T>;
  V sum[4], d_sum[4], d2_sum[4];
  unroll<4>([&](int k) { sum[k] = d_sum[k] = d2_sum[k] = V(0); });
  each_vector<T, 4>(n, [&](int64_t i, int k, auto part) { sum[k] += part.load(x + i); });
  const auto pivot = sum_of_four(sum) / static_cast<Wide<T>>(n);
  each_vector<T, 4>(n, [&](int64_t i, int k, auto part) {
    const V d = part.load(x + i, V(pivot)) - V(pivot);
    d_sum[k] += d;
    d2_sum[k] = fused(d, d, d2_sum[k]);
  });
  corrected_moments(static_cast<double>(n), pivot, sum_of_four(d_sum), sum_of_four(d2_sum), mean,
                    m2);
}

}  // namespace
}  // namespace quern::kernels
