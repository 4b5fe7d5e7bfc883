#include "quern/tensor/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "threads.h"

using namespace quern;

namespace {

std::vector<float> normals(int64_t n, uint64_t seed, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(n));
  fill_normal(values.data(), n, seed, stream);
  return values;
}

std::vector<float> uniforms(int64_t n, uint64_t seed, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(n));
  fill_uniform(values.data(), n, seed, stream);
  return values;
}

/// The mean of f(x) over the values.
template <class F>
double mean(const std::vector<float>& values, F f) {
  double sum = 0;
  for (float x : values) sum += f(static_cast<double>(x));
  return sum / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("philox: the known answers of Random123") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("random: element i is what the header says") {
  const uint64_t seed = 0x123456789abcdef0, stream = 0xfedcba9876543210;
  const std::vector<float> u = uniforms(50'001, seed, stream), z = normals(50'001, seed, stream);
  for (int64_t i : {0, 1, 2, 3, 4, 4095, 4096, 16'383, 16'384, 49'999, 50'000}) {
    const auto words = philox4x32({static_cast<uint32_t>(i / 4), 0, 0x76543210, 0xfedcba98},
                                  {0x9abcdef0, 0x12345678});
    const auto at = static_cast<size_t>(i);
    CHECK(u[at] == static_cast<float>(words[at % 4] >> 8) / 16777216.0f);
    const size_t pair = at % 4 / 2 * 2;
    const double radius =
        std::sqrt(-2 * std::log((static_cast<double>(words[pair] >> 1) + 0.5) / 0x1p31));
    const double angle = 2 * M_PI * static_cast<double>(words[pair + 1] >> 8) / 16777216.0;
    // A few roundings in f32, of the radius and of the angle (up to 2π, so 4 ulp of 1 absolute).
    const double expected = radius * (at % 2 == 0 ? std::cos(angle) : std::sin(angle));
    CHECK(std::fabs(z[at] - expected) <= 8 * 0x1p-24 * radius + 0x1p-24);
  }
}

TEST_CASE("random: the same numbers for any number of threads, and for any part of a draw") {
  const test::Threads kept(1);
  const std::vector<float> one = normals(100'003, 5, 2), one_uniform = uniforms(100'003, 5, 2);
  for (int threads : {2, 3}) {
    set_num_threads(threads);
    CHECK(normals(100'003, 5, 2) == one);
    CHECK(uniforms(100'003, 5, 2) == one_uniform);
  }
  for (int64_t n : {0, 1, 5, 1027, 20'001}) {
    const std::vector<float> part = normals(n, 5, 2);
    CHECK(std::equal(part.begin(), part.end(), one.begin()));
  }
}

TEST_CASE("random: uniform moments") {
  const std::vector<float> u = uniforms(1'000'000, 3, 0);
  CHECK(*std::min_element(u.begin(), u.end()) >= 0);
  CHECK(*std::max_element(u.begin(), u.end()) < 1);
  // The mean of n has a standard deviation of sqrt(1/12n) = 2.9e-4, that of squares sqrt(4/45n) =
  // 3e-4.
  CHECK(std::fabs(mean(u, [](double x) { return x; }) - 0.5) < 5 * 2.9e-4);
  CHECK(std::fabs(mean(u, [](double x) { return x * x; }) - 1.0 / 3) < 5 * 3e-4);
}

TEST_CASE("random: normal moments") {
  const std::vector<float> z = normals(1'000'000, 3, 0);
  // Standard deviations of the mean of x, x², x³, x⁴ over n: sqrt(1, 2, 15, 96)/1000.
  CHECK(std::fabs(mean(z, [](double x) { return x; })) < 5 * 1e-3);
  CHECK(std::fabs(mean(z, [](double x) { return x * x; }) - 1) < 5 * 1.42e-3);
  CHECK(std::fabs(mean(z, [](double x) { return x * x * x; })) < 5 * 3.9e-3);
  CHECK(std::fabs(mean(z, [](double x) { return x * x * x * x; }) - 3) < 5 * 9.8e-3);
  // P(|x| > 4) = 6.33e-5: 63 expected, of standard deviation 8.
  const double tail = mean(z, [](double x) { return std::fabs(x) > 4; }) * 1e6;
  CHECK(std::fabs(tail - 63.3) < 40);
  // Neighbours of a pair, and of two pairs, are not correlated: 1/sqrt(n) each.
  double near = 0, far = 0;
  for (size_t i = 0; i + 2 < z.size(); i += 4) near += z[i] * z[i + 1], far += z[i] * z[i + 2];
  CHECK(std::fabs(near / 250'000) < 5 * 2e-3);
  CHECK(std::fabs(far / 250'000) < 5 * 2e-3);
}

TEST_CASE("random: seeds and streams differ") {
  const std::vector<float> base = uniforms(64, 1, 1);
  CHECK(uniforms(64, 2, 1) != base);
  CHECK(uniforms(64, 1, 2) != base);
  CHECK(uniforms(64, (uint64_t{1} << 32) + 1, 1) != base);
  CHECK(uniforms(64, 1, (uint64_t{1} << 32) + 1) != base);
  Generator generator(9);
  const Tensor a = empty({10}), b = empty({10});
  uniform_(a, 0, 1, generator);
  uniform_(b, 0, 1, generator);
  CHECK(a.to_vector<float>() != b.to_vector<float>());
}

TEST_CASE("random: tensors in logical order whatever the strides and dtype") {
  for (DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    Generator first(4), second(4);
    const Tensor dense = empty({2, 3, 5, 7}, DType::f32);
    const Tensor other = empty({2, 3, 5, 7}, dtype, MemoryFormat::channels_last);
    normal_(dense, 1, 2, first);
    const uint64_t version = other.version();
    normal_(other, 1, 2, second);
    CHECK(other.version() > version);
    CHECK(other.to_vector<double>() == raw::to(dense, dtype).to_vector<double>());
  }
  manual_seed(1);
  const std::vector<float> a = randn({3, 3}).to_vector<float>(), b = rand({3}).to_vector<float>();
  manual_seed(1);
  CHECK(randn({3, 3}).to_vector<float>() == a);
  CHECK(rand({3}).to_vector<float>() == b);
  const Tensor u = empty({10'000}, DType::f64);
  uniform_(u, -3, 5);
  for (double x : u.to_vector<double>()) REQUIRE((x >= -3 && x < 5));
}

TEST_CASE("random: uniform numbers stay below their bound in every dtype") {
  manual_seed(7);
  const auto largest = [](const Tensor& t) {
    const std::vector<double> values = t.to_vector<double>();
    return *std::max_element(values.begin(), values.end());
  };
  const auto least = [](const Tensor& t) {
    const std::vector<double> values = t.to_vector<double>();
    return *std::min_element(values.begin(), values.end());
  };
  for (DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    CHECK(largest(rand({100'000}, dtype)) < 1);
    const Tensor t = empty({100'000}, dtype);
    for (const auto& [low, high] : {std::pair(1.0, 1.0 + 0x1p-7),
                                    {-1.0, 0.0},
                                    {-2.0, -1.0},
                                    {0.0, 0.7},
                                    {100.0, 101.0},
                                    {-0x1p-130, 0x1p-130}}) {
      uniform_(t, low, high);
      CHECK(largest(t) < high);
      CHECK(least(t) >= low);
    }
    uniform_(t, 3, 3);
    CHECK(largest(t) == 3);
    CHECK(least(t) == 3);
    uniform_(t, 1, 1 + 1e-12);
    CHECK(largest(t) == 1);
  }
  CHECK(largest(rand({100'000}, DType::bf16)) == 1 - 0x1p-8);
  CHECK(largest(rand({100'000}, DType::f16)) == 1 - 0x1p-11);
}

TEST_CASE("random: randint keeps to its range in every dtype") {
  manual_seed(8);
  struct Range {
    int64_t low, high;
    DType dtype;
    int64_t least, most;  // of the numbers that the dtype holds
  };
  for (const auto& [low, high, dtype, least, most] :
       {Range{0, 512, DType::bf16, 0, 510},
        {-511, 3, DType::bf16, -510, 2},
        {257, 260, DType::bf16, 258, 258},
        {2047, 2052, DType::f16, 2047, 2050},
        {INT64_MIN, INT64_MAX, DType::f16, -65504, 65504},
        {0, (1 << 24) + 2, DType::f32, 0, 1 << 24},
        {INT64_MIN, INT64_MAX, DType::f32, INT64_MIN, INT64_MAX - (int64_t{1} << 39) + 1},
        {INT64_MIN, INT64_MAX, DType::f64, INT64_MIN, INT64_MAX - (int64_t{1} << 10) + 1},
        {0, 256, DType::u8, 0, 255}}) {
    const std::vector<double> values = randint(low, high, {50'000}, dtype).to_vector<double>();
    const auto [a, b] = std::minmax_element(values.begin(), values.end());
    CHECK(*a >= static_cast<double>(least));
    CHECK(*b <= static_cast<double>(most));
  }
  CHECK_THROWS_WITH_AS(randint(0, 257, {1}, DType::u8),
                       "[randint] low, high: expected a range within u8, got 0, 257", Error);
  CHECK_THROWS_WITH_AS(randint(257, 258, {1}, DType::bf16),
                       "[randint] low, high: expected a range with numbers of bf16, got 257, 258",
                       Error);
  CHECK_THROWS_AS(randint(65505, 70000, {1}, DType::f16), Error);
  CHECK_THROWS_AS(randint(INT64_MAX - 2, INT64_MAX, {1}, DType::f64), Error);
}

TEST_CASE("random: randint reaches its bounds and nothing else") {
  manual_seed(2);
  const std::vector<int64_t> values = randint(-2, 3, {1000}).to_vector<int64_t>();
  CHECK(std::set<int64_t>(values.begin(), values.end()) == std::set<int64_t>{-2, -1, 0, 1, 2});
  CHECK(randint(5, 6, {3}).to_vector<int64_t>() == std::vector<int64_t>{5, 5, 5});
  CHECK(randint(0, 10, {4}, DType::u8).dtype() == DType::u8);
  int negative = 0;
  for (int64_t x : randint(INT64_MIN, INT64_MAX, {1000}).to_vector<int64_t>()) negative += x < 0;
  CHECK(std::abs(negative - 500) < 5 * 16);
}

TEST_CASE("random: errors") {
  CHECK_THROWS_WITH_AS(normal_(zeros({2}, DType::i32), 0, 1),
                       "[normal_] dtype: expected a floating one, got i32", Error);
  CHECK_THROWS_WITH_AS(normal_(zeros({2}), 0, -1), "[normal_] std: expected at least 0, got -1",
                       Error);
  CHECK_THROWS_WITH_AS(uniform_(zeros({2}), 1, 0), "[uniform_] high: expected at least 1, got 0",
                       Error);
  CHECK_THROWS_WITH_AS(randint(3, 3, {1}), "[randint] high: expected more than 3, got 3", Error);
  CHECK_THROWS_AS(uniform_(zeros({2}), -3e38, 3e38), Error);
  Generator generator(1);
  CHECK_THROWS_AS(uniform_(raw::expand(zeros({1}), {2}), 0, 1, generator), Error);
  CHECK(generator.next_stream() == 0);
  CHECK_THROWS_AS(uniform_(Tensor(), 0, 1), Error);
  CHECK_THROWS_AS(normal_(Tensor(), 0, 1), Error);
}
