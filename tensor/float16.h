// float16: IEEE binary16, torch's float16. Storage only: no op computes in it.
#pragma once
#include <bit>
#include <cstdint>

#include "quern/tensor/round_to_odd.h"

namespace quern {

struct float16 {
  uint16_t bits = 0;  ///< sign, 5 of the exponent, 10 of the fraction

  float16() = default;
  /// Rounds to nearest, ties to even, to infinity from 65520 on; a NaN stays a (quiet) NaN with its
  /// sign and upper payload. Subnormal numbers are kept, whatever the thread's FloatMode is.
  constexpr explicit float16(float value) : bits(round(std::bit_cast<uint32_t>(value))) {}
  constexpr explicit float16(double value) : float16(detail::round_to_odd(value)) {}
  /// Exact; a NaN becomes a quiet one.
  constexpr operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u)
      return std::bit_cast<float>(sign | 0x7f800000u | (size > 0x7c00u) << 22 | size << 13);
    if (size >= 0x0400u) return std::bit_cast<float>(sign | ((size << 13) + kExponents));
    const float subnormal = static_cast<float>(size) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
  }

  /// The one that is stored so.
  static constexpr float16 from_bits(uint16_t bits) {
    float16 value;
    value.bits = bits;
    return value;
  }

 private:
  static constexpr uint32_t kExponents = (127 - 15) << 23;  // between the two biases

  static constexpr uint16_t round(uint32_t u) {
    const uint32_t sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    const auto with_sign = [=](uint32_t half) { return static_cast<uint16_t>(sign | half); };
    if (size > 0x7f800000u) return with_sign(0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x47800000u) return with_sign(0x7c00u);  // 65536
    if (size >= 0x38800000u)                             // 2^-14, the least normal number
      return with_sign((size - kExponents + 0xfffu + (size >> 13 & 1u)) >> 13);
    // From 0.5 on floats are 2^-24 apart, as subnormal halves are.
    const float sum = std::bit_cast<float>(size) + 0.5f;
    return with_sign(std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f));
  }
};
static_assert(sizeof(float16) == 2);

}  // namespace quern
