// IEEE half precision, which files hold and no op computes in. Internal to readers of files.
#pragma once
#include <bit>
#include <cstdint>

namespace quern {

inline float half_to_float(uint16_t half) {
  // Half's exponent and mantissa, moved to float's places, are the value times 2^(15-127).
  uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)  // infinity or NaN: float's exponent is all ones too
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

}  // namespace quern
