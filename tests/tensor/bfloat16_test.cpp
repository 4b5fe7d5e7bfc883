#include "quern/tensor/bfloat16.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "quern/tensor/dtype.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/tensor.h"

using namespace quern;

namespace {

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

/// Round to nearest, ties to even, told in double arithmetic: of the two neighbours of x in
/// bfloat16 the nearer one. Beyond the largest number the neighbour is 2^128, which is infinity.
uint16_t nearest(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto below = static_cast<uint16_t>(u >> 16);
  if (std::isinf(x)) return below;
  const auto above = static_cast<uint16_t>(below + 1);
  const auto magnitude = [](uint16_t bits) {
    const double value = std::fabs(static_cast<double>(float_of(uint32_t{bits} << 16)));
    return std::isinf(value) ? 0x1p128 : value;
  };
  const double to_below = std::fabs(static_cast<double>(x)) - magnitude(below);
  const double to_above = magnitude(above) - std::fabs(static_cast<double>(x));
  if (to_below != to_above) return to_below < to_above ? below : above;
  return below % 2 == 0 ? below : above;
}

}  // namespace

TEST_CASE("bfloat16: all values survive the way through float, NaNs quietened") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = bfloat16::from_bits(static_cast<uint16_t>(bits));
    const float wide = value;
    REQUIRE(std::bit_cast<uint32_t>(wide) == bits << 16);
    const bool nan = (bits & 0x7fff) > 0x7f80;
    REQUIRE(bfloat16(wide).bits == (nan ? bits | 0x40 : bits));
    REQUIRE(std::isnan(wide) == nan);
  }
}

TEST_CASE("bfloat16: rounds to nearest, ties to even, around every value") {
  // Around each value: itself, the tie above it, and both neighbours of each; denormals and
  // infinity too.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = float_of(bits << 16 | low);
      if (std::isnan(x)) {
        REQUIRE(std::isnan(static_cast<float>(bfloat16(x))));
        REQUIRE((bfloat16(x).bits >> 15) == (bits >> 15));
      } else {
        REQUIRE(bfloat16(x).bits == nearest(x));
      }
    }
  }
}

TEST_CASE("bfloat16: rounds to nearest for random floats") {
  std::mt19937 random(7);
  for (int i = 0; i < 1'000'000; ++i) {
    const float x = float_of(static_cast<uint32_t>(random()));
    if (!std::isnan(x)) REQUIRE(bfloat16(x).bits == nearest(x));
  }
}

// By way of a float they would be rounded twice: what lies within 2^-53 of a tie becomes one.
TEST_CASE("bfloat16: rounds doubles once") {
  int seen = 0;
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const double below = static_cast<double>(float_of(bits << 16));
    const double above = bits == 0x7f7f ? 0x1p128 : static_cast<double>(float_of((bits + 1) << 16));
    const double middle = (below + above) / 2;
    const uint32_t even = bits + bits % 2;
    const auto check = [&](double x, uint32_t expected) {
      for (const double y : {x, -x}) {
        const uint32_t sign = y < 0 ? 0x8000 : 0;
        REQUIRE(bfloat16(y).bits == (sign | expected));
        seen += bfloat16(y).bits != bfloat16(static_cast<float>(y)).bits;
      }
    };
    check(middle, even);
    check(std::nextafter(middle, 0.0), bits);
    check(std::nextafter(middle, HUGE_VAL), bits + 1);
  }
  CHECK(seen > 60'000);  // one of the two beside each tie, of either sign
  CHECK(bfloat16(1e300).bits == 0x7f80);
  CHECK(bfloat16(-0x1p-1074).bits == 0x8000);
  CHECK(std::isnan(static_cast<float>(bfloat16(std::nan("")))));

  // Copies take the same way: 257 lies between 256 and 258.
  const Tensor x = from_vector<double>({257, 257 - 0x1p-40, 257 + 0x1p-40, 259, 259 - 0x1p-40});
  CHECK(raw::to(x, DType::bf16).to_vector<double>() ==
        std::vector<double>{256, 256, 258, 260, 258});
}

TEST_CASE("bfloat16: NaN payloads in the lower half do not become infinity") {
  CHECK(bfloat16(float_of(0x7f800001)).bits == 0x7fc0);
  CHECK(bfloat16(float_of(0xff800001)).bits == 0xffc0);
  CHECK(bfloat16(float_of(0x7fffffff)).bits == 0x7fff);
}

TEST_CASE("dtype: names, sizes, promotion") {
  CHECK(to_string(DType::boolean) == "bool");
  CHECK(to_string(DType::bf16) == "bf16");
  CHECK(to_string(DType::f16) == "f16");
  CHECK(to_string(DType::f64) == "f64");
  for (DType dtype : {DType::boolean, DType::u8, DType::i32, DType::i64, DType::f16, DType::bf16,
                      DType::f32, DType::f64}) {
    visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
      CHECK(dtype_of<T> == dtype);
      CHECK(itemsize(dtype) == sizeof(T));
      CHECK(is_floating(dtype) == !std::is_integral_v<T>);
    });
  }
  CHECK(promote(DType::i64, DType::bf16) == DType::bf16);
  CHECK(promote(DType::f32, DType::bf16) == DType::f32);
  CHECK(promote(DType::u8, DType::boolean) == DType::u8);
  for (const DType dtype : {DType::boolean, DType::u8, DType::i32, DType::i64, DType::f16})
    CHECK(promote(DType::f16, dtype) == DType::f16);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    CHECK(promote(DType::f16, dtype) == DType::f32);
    CHECK(promote(dtype, DType::f16) == DType::f32);
  }
  CHECK(promote(DType::f64, DType::f16) == DType::f64);
  CHECK_THROWS_WITH_AS(visit_floating("exp", DType::i32, [](auto) {}),
                       "[exp] dtype: expected bf16, f32 or f64, got i32", Error);
  CHECK_THROWS_WITH_AS(visit_floating("exp", DType::f16, [](auto) {}),
                       "[exp] dtype: expected bf16, f32 or f64, got f16, which is storage: "
                       "to(DType::f32) or bf16 comes first",
                       Error);
}
