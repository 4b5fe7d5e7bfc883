// Networks as tests/pytorch/make_goldens.py makes them, from Philox numbers, and digests of their
// tensors as goldens hold them.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "larger.h"
#include "quern/tensor/random.h"
#include "quern/tensor/tensor.h"
#include "quern/tensor/tensor_dict.h"

namespace quern::test {

inline constexpr uint64_t kSeed = 2026;
inline constexpr size_t kProjections = 16;

using Values = std::vector<double>;
using Digest = std::array<double, kProjections>;

inline Tensor uniform(const Shape& shape, uint64_t stream, float low, float high) {
  Tensor t = empty(shape);
  fill_uniform(t.out<float>(), t.numel(), kSeed, stream);
  for (float& x : std::span(t.out<float>(), static_cast<size_t>(t.numel())))
    x = low + (high - low) * x;
  return t;
}

/// A parameter, or a running statistic of a batch norm.
inline Tensor recipe_tensor(std::string_view name, const Shape& shape, uint64_t stream) {
  if (shape.size() == 4) {
    const auto bound =
        static_cast<float>(std::sqrt(6.0 / static_cast<double>(shape[1] * shape[2] * shape[3])));
    return uniform(shape, stream, -bound, bound);
  }
  if (shape.size() == 2) return uniform(shape, stream, -0.02f, 0.02f);
  if (name.ends_with("bias") || name.ends_with("mean")) return uniform(shape, stream, -0.2f, 0.2f);
  if (name.find("bn3") != name.npos) return uniform(shape, stream, 0.1f, 0.3f);
  return uniform(shape, stream, 0.5f, 1.5f);
}

/// Projections on 16 vectors of random signs: E[(projection of d)²] = |d|². A bit tells a sign, 1
/// is minus; values whose eight signs are the same are added up first.
inline Digest digest(const Tensor& t, uint64_t stream) {
  const auto values = t.to_vector<float>();
  std::array<std::array<double, 256>, kProjections / 8> sums{};
  for (size_t i = 0; i < values.size(); i += 4) {
    const uint64_t block = i / 4;
    const auto words = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                   static_cast<uint32_t>(stream), 0},
                                  {static_cast<uint32_t>(kSeed + 1), 0});
    for (size_t j = i; j < std::min(i + 4, values.size()); ++j)
      for (size_t byte = 0; byte < sums.size(); ++byte)
        sums[byte][words[j % 4] >> 8 * byte & 255] += static_cast<double>(values[j]);
  }
  Digest projections{};
  for (size_t byte = 0; byte < sums.size(); ++byte)
    for (size_t signs = 0; signs < 256; ++signs)
      for (size_t k = 0; k < 8; ++k)
        projections[8 * byte + k] += (signs >> k & 1) != 0 ? -sums[byte][signs] : sums[byte][signs];
  return projections;
}

inline std::vector<Digest> digests(const TensorDict& named) {
  std::vector<Digest> rows;
  for (const auto& [name, t] : named)
    if (t.dtype() == DType::f32) rows.push_back(digest(t, rows.size()));
  return rows;
}

/// |a - b| / |b| over n values.
inline double relative(const double* a, const double* b, size_t n) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

inline double worst(const Values& values) {
  return std::accumulate(values.begin(), values.end(), values.front(), larger);
}
inline double median(Values values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

}  // namespace quern::test
