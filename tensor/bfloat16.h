// bfloat16: the upper half of an IEEE binary32. Arithmetic happens in float; this is storage.
#pragma once
#include <bit>
#include <cstdint>

#include "quern/tensor/round_to_odd.h"

namespace quern {

struct bfloat16 {
  uint16_t bits = 0;  ///< sign, 8 of the exponent, 7 of the fraction

  bfloat16() = default;
  /// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN with its sign and upper payload.
  constexpr explicit bfloat16(float value) : bits(round(std::bit_cast<uint32_t>(value))) {}
  constexpr explicit bfloat16(double value) : bfloat16(detail::round_to_odd(value)) {}
  /// Exact.
  constexpr operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }

  /// The one that is stored so.
  static constexpr bfloat16 from_bits(uint16_t bits) {
    bfloat16 value;
    value.bits = bits;
    return value;
  }

 private:
  static constexpr uint16_t round(uint32_t u) {
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
};
static_assert(sizeof(bfloat16) == 2);

}  // namespace quern
