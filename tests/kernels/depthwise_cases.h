// What the tests of depthwise convolutions share: their problems and data, and how results compare.
#pragma once
#include <cmath>
#include <vector>

#include "conv_cases.h"
#include "quern/ops/kernels/conv/depthwise/depthwise_kernel.h"
#include "records.h"

namespace quern::test {

inline const DepthwiseKernel& reference_of(DType dtype) {
  return named(table<DepthwiseKernel>(),
               dtype == DType::f32 ? "depthwise_f32_reference" : "depthwise_bf16_reference");
}
inline float* floats(void* p) { return static_cast<float*>(p); }

inline Case depthwise(int64_t n, int64_t channels, Pair size, Pair kernel, Pair stride, Pair pad,
                      Pair dilation = {1, 1}) {
  return {.n = n,
          .groups = channels,
          .ic = channels,
          .oc = channels,
          .size = size,
          .kernel = kernel,
          .stride = stride,
          .pad = pad,
          .dilation = dilation};
}

/// x, the weight and dy of a problem: integers, or like those of a network.
struct Data {
  std::vector<double> x, w, dy;
  Data(const ConvProblem& p, bool exact)
      : x(numbers(p.n * p.ic * p.ih * p.iw, 1, exact)),
        w(numbers(p.oc * p.kh * p.kw, 2, exact)),
        dy(numbers(p.n * p.oc * p.oh * p.ow, 3, exact)) {
    for (auto* values : {&x, &w, &dy}) *values = rounded(*values, p.dtype);
  }
  void make_absolute() {
    for (auto* values : {&x, &w, &dy})
      for (double& value : *values) value = std::abs(value);
  }

 private:
  static std::vector<double> numbers(int64_t count, uint32_t seed, bool exact) {
    return exact ? integers(count, seed) : waves(count, seed);
  }
};

/// Is a as near to b as sums of so many terms, which are `magnitude` without their signs, may be?
inline bool within(const std::vector<double>& a, const std::vector<double>& b,
                   const std::vector<double>& magnitude, int64_t terms, DType result) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!close(a[i], b[i], static_cast<double>(terms + 1) * magnitude[i], result)) return false;
  return true;
}

/// Are they NaN, infinite and finite in the same places?
inline bool same_kinds(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return false;
    if (std::isinf(b[i]) && a[i] != b[i]) return false;
    if (std::isfinite(a[i]) != std::isfinite(b[i])) return false;
  }
  return true;
}

}  // namespace quern::test
