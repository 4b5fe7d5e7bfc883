// The lesson on precision: what fails in bf16 and works in f32; its exercises.
#include "precision/precision.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

using namespace quern;
using namespace quern::lessons;

namespace {

std::vector<float> normal_numbers(size_t n, float mean, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, 1);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

double exact_variance(const std::vector<float>& values) {
  double mean = 0, squares = 0;
  for (float x : values) mean += x / static_cast<double>(values.size());
  for (float x : values) squares += (x - mean) * (x - mean);
  return squares / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("A sum of ones stops at 256 in bf16, at 2^24 in f32") {
  CHECK(repeated_sum<bfloat16>(256, 1) == 256);
  CHECK(repeated_sum<bfloat16>(1000, 1) == 256);
  CHECK(repeated_sum<float>(1000, 1) == 1000);
  CHECK(repeated_sum<float>((1 << 24) + 100, 1) == 1 << 24);
}

TEST_CASE(
    "A variance is lost in bf16, and in f32 where the mean is large, but not by differences") {
  for (float mean : {10.0f, 4096.0f}) {
    const auto values = normal_numbers(8192, mean, 1);
    const double exact = exact_variance(values);
    CHECK(std::abs(variance_of_sums<bfloat16>(values) - exact) > 0.5);
    CHECK(std::abs(variance_of_differences<bfloat16>(values) - exact) > 0.1);
    // The mean is rounded n times, by 2^-24 of it and to either side: off by some √n of these, as
    // are the squares of theirs.
    CHECK(std::abs(variance_of_differences<float>(values) - exact) <
          std::sqrt(8192) * 0x1p-24 * mean);
    if (mean > 1000) CHECK(std::abs(variance_of_sums<float>(values) - exact) > 0.5);
  }
}

TEST_CASE("Three products of bf16 are as exact as 16 bits, one as 8") {
  const auto a = normal_numbers(1024, 0, 1), b = normal_numbers(1024, 0, 2);
  double exact = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double product = static_cast<double>(a[i]) * b[i];
    exact += product, size += std::abs(product);
  }
  // A factor's error is 2^-8 of it, of two terms 2^-17 and what lo·lo was, 2^-16;
  // sums in f32 add 3·1024·2^-24.
  CHECK(std::abs(dot(a, b, false) - exact) < 0x1p-7 * 1.01 * size);
  CHECK(std::abs(dot(a, b, true) - exact) < (0x1p-15 + 3072 * 0x1p-24) * size);
  CHECK(std::abs(dot(a, b, true) - exact) < std::abs(dot(a, b, false) - exact) / 10);
}

constexpr int kSteps = 700;

TEST_CASE("Training: bf16 products do, bf16 weights do not") {
  const double f32 = train(kSteps, false, keep_f32);
  CHECK(train(kSteps, true, keep_f32) < 1.2 * f32);   // master weights
  CHECK(train(kSteps, true, keep_bf16) > 1.5 * f32);  // without
}

// Exercises.

TEST_CASE("1 Kahan's sum in bf16") {
  const auto kahan_sum = [](int64_t n, bfloat16 value) {
    bfloat16 sum(0.0f), lost(0.0f);
    for (int64_t i = 0; i < n; ++i) {
      const bfloat16 next(value + lost), before = sum;
      sum = bfloat16(before + next);
      lost = bfloat16(next - bfloat16(sum - before));
    }
    return static_cast<float>(sum);
  };
  CHECK(kahan_sum(1000, bfloat16(1.0f)) == bfloat16(1000.0f));
  CHECK(kahan_sum(10000, bfloat16(1.0f)) == bfloat16(10000.0f));
  CHECK(kahan_sum(100000, bfloat16(1.0f)) ==
        65536);  // where what is lost adds up to 256, and stops, too
}

TEST_CASE("Weights: stochastic rounding trains weights of bf16") {
  RandomStream random(1, 2);
  const auto round = [&](float x) {  // up by as many of the 2^16 cases as the lower bits count
    const uint32_t bits = std::bit_cast<uint32_t>(x) + (random.word() & 0xffff);
    return std::bit_cast<float>(bits & 0xffff0000);
  };
  double mean = 0;
  for (int i = 0; i < 10000; ++i) mean += round(1.003f) / 10000;
  CHECK(std::abs(mean - 1.003) < 5 * 0x1p-8 / 100);  // five deviations, at most half a step each

  const auto store = [&](const Tensor& weight) {
    float* const w = weight.mutable_data<float>();
    for (int64_t i = 0; i < weight.numel(); ++i) w[i] = round(w[i]);
  };
  CHECK(train(kSteps, true, store) < 1.2 * train(kSteps, true, keep_f32));
}

TEST_CASE("2 Of numbers of bf16 lo is 0: hi·lo may be left out, and two products are left") {
  for (float x : normal_numbers(1000, 0, 1)) {
    CHECK(Halves(bfloat16(x)).lo == 0);
    CHECK(static_cast<float>(Halves(bfloat16(x)).hi) == static_cast<float>(bfloat16(x)));
  }
}

TEST_CASE("3 Three bf16 hold an f32") {
  for (float x : normal_numbers(1000, 0, 1)) {
    const bfloat16 high(x), middle(x - high), low(x - high - middle);
    CHECK(high + middle + low == x);
  }
}
