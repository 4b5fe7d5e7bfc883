#include "quern/tensor/float16.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "quern/tensor/float_mode.h"
#include "quern/tensor/raw.h"

using namespace quern;

namespace {

/// What 16 bits stand for, by IEEE 754.
double value_of(int bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/// Round to nearest, ties to even, of any number but NaN: to a whole multiple of the spacing there,
/// as if there were no largest number.
double nearest(double x) {
  if (x == 0 || std::isinf(x)) return x;
  const int spacing = std::max(std::ilogb(x), -14) - 10;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -spacing)), spacing);
  return std::abs(rounded) >= 65536 ? std::copysign(INFINITY, x) : rounded;
}

bool same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

template <class T>
bool rounds(T x) {
  const double expected = nearest(static_cast<double>(x));
  return same(value_of(float16(x).bits), expected);
}

Tensor all_halves() {
  const Tensor t = empty({65536}, DType::f16);
  for (int i = 0; i < 65536; ++i)
    t.out<float16>()[i] = float16::from_bits(static_cast<uint16_t>(i));
  return t;
}

/// Floats beside each half, at the middle between two and beside it, and any others.
std::vector<float> floats() {
  std::vector<float> all;
  for (int bits = 0; bits < 65536; ++bits) {
    const auto here = static_cast<float>(value_of(bits));
    if (std::isnan(here)) continue;
    const double next =
        std::isinf(value_of(bits + 1)) ? std::copysign(65536.0, here) : value_of(bits + 1);
    const auto middle = static_cast<float>((static_cast<double>(here) + next) / 2);
    for (const float x : {here, middle})
      for (const float y : {x, std::nextafter(x, -INFINITY), std::nextafter(x, INFINITY)})
        all.push_back(y);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 1'000'000; ++i)
    all.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return all;
}

}  // namespace

TEST_CASE("float16: all values are what IEEE 754 says, and survive the way through float") {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = float16::from_bits(static_cast<uint16_t>(bits));
    const float wide = half;
    if (std::isnan(value_of(bits))) {
      const auto expected = static_cast<uint32_t>((bits & 0x8000) << 16 | 0x7fc00000 |
                                                  (bits & 0x3ff) << 13);  // quiet
      REQUIRE(std::bit_cast<uint32_t>(wide) == expected);
      REQUIRE(float16(wide).bits == (bits | 0x200));
    } else {
      REQUIRE(same(wide, value_of(bits)));
      REQUIRE(float16(wide).bits == bits);
      REQUIRE(float16(static_cast<double>(wide)).bits == bits);
    }
  }
}

TEST_CASE("float16: rounds floats to nearest, ties to even") {
  for (const float x : floats()) {
    if (!std::isnan(x)) REQUIRE(rounds(x));
  }
  CHECK(float16(65519.996f).bits == 0x7bff);
  CHECK(float16(65520.0f).bits == 0x7c00);
  CHECK(float16(0x1p-25f).bits == 0);
  CHECK(float16(-0x1.000002p-25f).bits == 0x8001);
  for (const uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xffc00000u}) {
    const float16 half(std::bit_cast<float>(nan));
    CHECK(half.bits == ((nan >> 16 & 0x8000) | 0x7e00 | (nan >> 13 & 0x3ff)));
  }
}

// By way of a float they would be rounded twice: what lies within 2^-53 of a tie becomes one.
TEST_CASE("float16: rounds doubles once") {
  int seen = 0;
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const double next = bits == 0x7bff ? 65536 : value_of(bits + 1);
    const double middle = (value_of(bits) + next) / 2;
    for (const double x : {middle, std::nextafter(middle, 0), std::nextafter(middle, 1e9)})
      for (const double y : {x, -x}) {
        REQUIRE(rounds(y));
        seen += float16(y).bits != float16(static_cast<float>(y)).bits;
      }
  }
  CHECK(seen > 30'000);  // one of the two beside each tie
  for (const double x : {1e300, 1e-300, 0x1p-1074, 65519.999999999, 65520.0, HUGE_VAL}) {
    CHECK(rounds(x));
    CHECK(rounds(-x));
  }
  CHECK(std::isnan(static_cast<float>(float16(std::nan("")))));
  std::mt19937_64 random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto exponent = static_cast<int>(random() % 48) - 28;
    REQUIRE(rounds(std::ldexp(static_cast<double>(random()) * 0x1p-64 - 0.5, exponent)));
  }
}

TEST_CASE("float16: subnormal numbers are kept where denormal floats are not") {
  const KernelFloatMode flushing;
  for (int bits = 0; bits < 0x800; ++bits) {
    const volatile float wide = float16::from_bits(static_cast<uint16_t>(bits));
    REQUIRE(wide ==
            std::ldexp(static_cast<float>(bits < 0x400 ? bits : 0x400 + (bits & 0x3ff)), -24));
    REQUIRE(float16(wide).bits == bits);
  }
}

TEST_CASE("f16: copies widen all 65536 values as the definition does") {
  const Tensor halves = all_halves();
  const Tensor f32 = raw::to(halves, DType::f32), f64 = raw::to(halves, DType::f64),
               bf16 = raw::to(halves, DType::bf16), strided = empty({65536, 2});
  raw::copy_(raw::select(strided, 1, 1), halves);
  for (int bits = 0; bits < 65536; ++bits) {
    const float expected = float16::from_bits(static_cast<uint16_t>(bits));
    const auto is = [&](float got) {
      return std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(expected);
    };
    REQUIRE(is(f32.data<float>()[bits]));
    REQUIRE(is(strided.data<float>()[2 * bits + 1]));
    REQUIRE(is(static_cast<float>(f64.data<double>()[bits])));
    REQUIRE(bf16.data<bfloat16>()[bits].bits == bfloat16(expected).bits);
  }
  const Tensor same_bits = raw::clone(halves);
  CHECK(std::memcmp(same_bits.data_ptr(), halves.data_ptr(), 2 * 65536) == 0);
}

TEST_CASE("f16: copies round as the definition does, in any layout") {
  const std::vector<float> values = floats();
  const Tensor x = from_vector(values), halves = raw::to(x, DType::f16);
  const auto n = static_cast<int64_t>(values.size());
  const Tensor apart = empty({n, 3}, DType::f16);
  raw::copy_(raw::select(apart, 1, 2), x);
  const Tensor wide = raw::to(raw::to(x, DType::f64), DType::f16);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t expected = float16(values[static_cast<size_t>(i)]).bits;
    REQUIRE(halves.data<float16>()[i].bits == expected);
    REQUIRE(apart.data<float16>()[3 * i + 2].bits == expected);
    REQUIRE(wide.data<float16>()[i].bits == expected);
  }
  for (int64_t length = 1; length < 40; ++length) {  // whatever a vector holds
    const Tensor part = raw::to(raw::slice(x, 0, 5, 5 + length), DType::f16);
    for (int64_t i = 0; i < length; ++i)
      REQUIRE(part.data<float16>()[i].bits == halves.data<float16>()[5 + i].bits);
  }
}

TEST_CASE("f16: to and from integers and bool") {
  const Tensor whole = from_vector<int64_t>({0, 1, -2049, 65504, 65519, 65520, -70000, INT64_MAX});
  CHECK(raw::to(whole, DType::f16).to_vector<double>() ==
        std::vector<double>{0, 1, -2048, 65504, 65504, INFINITY, -INFINITY, INFINITY});
  const Tensor halves = raw::to(
      from_vector<double>({-0.0, 0x1p-24, -1.75, 300.5, INFINITY, -INFINITY, NAN}), DType::f16);
  CHECK(raw::to(halves, DType::boolean).to_vector<int>() == std::vector{0, 1, 1, 1, 1, 1, 1});
  CHECK(raw::to(halves, DType::u8).to_vector<int>() == std::vector{0, 0, 0, 255, 255, 0, 0});
  CHECK(raw::to(halves, DType::i64).to_vector<int64_t>() ==
        std::vector<int64_t>{0, 0, -1, 300, INT64_MAX, INT64_MIN, 0});
  CHECK(raw::to(full({3}, 1, DType::boolean), DType::f16).to_vector<float>() ==
        std::vector{1.0f, 1.0f, 1.0f});
}

TEST_CASE("f16: tensors are made, read and filled") {
  CHECK(zeros({2}, DType::f16).to_vector<float>() == std::vector{0.0f, 0.0f});
  CHECK(ones({2}, DType::f16).to_vector<float>() == std::vector{1.0f, 1.0f});
  CHECK(arange(3, DType::f16).to_vector<float>() == std::vector{0.0f, 1.0f, 2.0f});
  const Tensor t = full({2, 3}, 0.1, DType::f16, MemoryFormat::contiguous);
  CHECK(t.nbytes() == 12);
  CHECK(t.describe() == "f16 [2,3]");
  CHECK(t.to_vector<float16>()[5].bits == 0x2e66);
  CHECK(raw::select(raw::select(t, 0, 0), 0, 0).item() == 0x1.998p-4);
  const auto number = [](double x) { return full({}, x, DType::f16); };
  CHECK(number(-3.5).item<int64_t>() == -3);
  CHECK(number(65504).item<int32_t>() == 65504);
  for (const double x :
       {static_cast<double>(INFINITY), -static_cast<double>(INFINITY), std::nan("")}) {
    CHECK_THROWS_AS(number(x).item<int64_t>(), Error);
    CHECK_THROWS_AS(number(x).item<int>(), Error);
  }
  CHECK_THROWS_AS(t.data<bfloat16>(), Error);
}
