// What numbers of few bits lose, and what is kept in more: sums, variances, products, weights. T is
// float or bfloat16 (tensor/bfloat16.h), which is rounded to after each operation in float.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quern/quern.h"

namespace quern::lessons {

// [sum]
/// `value`, added up n times.
template <class T>
float repeated_sum(int64_t n, float value) {
  T sum(0.0f);
  for (int64_t i = 0; i < n; ++i) sum = T(sum + value);
  return sum;
}
// [end]

/// The mean of the squares less the square of the mean.
template <class T>
float variance_of_sums(std::span<const float> values) {
  T sum(0.0f), squares(0.0f);
  for (float x : values) sum = T(sum + x), squares = T(squares + x * x);
  const auto n = static_cast<float>(values.size());
  return squares / n - (sum / n) * (sum / n);
}

// [variance]
/// The mean so far, and the squares of what lies between it and each number: Welford, "Note on a
/// method for calculating corrected sums of squares and products", Technometrics, 1962.
template <class T>
float variance_of_differences(std::span<const float> values) {
  T mean(0.0f), squares(0.0f);
  float n = 0;
  for (float x : values) {
    const float before = x - mean;
    mean = T(mean + before / ++n);
    squares = T(squares + before * (x - mean));
  }
  return squares / n;
}
// [end]

// [split]
/// x ≈ hi + lo, which have 8 bits each, and a sign: 16 or 17 of the 24 of x.
struct Halves {
  bfloat16 hi, lo;
  explicit Halves(float x) : hi(x), lo(x - hi) {}
};
// [end]

/// Σ a·b in f32, each product one of bf16, or three.
inline float dot(std::span<const float> a, std::span<const float> b, bool three) {
  float sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const Halves x(a[i]), y(b[i]);
    if (three) sum += x.hi * y.lo + x.lo * y.hi;
    sum += x.hi * y.hi;
  }
  return sum;
}

/// 256 points of a square, and on which of two arms of a spiral each is:
/// f32 [256, 2] and i64 [256].
struct Spiral {
  Tensor points, arms;
};
inline Spiral spiral() {
  constexpr int64_t n = 256;
  RandomStream random(1, 1);
  std::vector<float> points;
  std::vector<int64_t> arms;
  for (int64_t i = 0; i < n; ++i) {
    const double x = random.uniform(-1, 1), y = random.uniform(-1, 1);
    points.insert(points.end(), {static_cast<float>(x), static_cast<float>(y)});
    arms.push_back(std::sin(6 * std::hypot(x, y) + 2 * std::atan2(y, x)) > 0);
  }
  return {from_vector(points, {n, 2}), from_vector(arms, {n})};
}

// [training]
/// What becomes of a weight after each step.
using Store = std::function<void(const Tensor& weight)>;

inline void keep_f32(const Tensor&) {}
inline void keep_bf16(const Tensor& weight) {
  raw::copy_(weight, raw::to(raw::to(weight, DType::bf16), DType::f32));
}

/// The loss after so many steps, of which each reads the whole spiral.
inline double train(int steps, bool bf16_products, const Store& store) {
  manual_seed(1);
  const auto [points, arms] = spiral();
  nn::Sequential net(nn::Linear(2, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(),
                     nn::Linear(64, 2));
  optim::Adam optimizer(net.parameters(), {.lr = 3e-4});
  const AutocastGuard autocast(bf16_products);  // weights and inputs of products are bf16 copies
  Tensor loss;
  for (int step = 0; step < steps; ++step) {
    loss = cross_entropy(net(points), arms);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    for (const Tensor& weight : net.parameters()) store(weight);
  }
  return loss.item();
}
// [end]

}  // namespace quern::lessons
