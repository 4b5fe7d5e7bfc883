// Stochastic rounding: f32 to one of the two bf16 or f16 numbers beside it, by chance, so that it
// is right on average. Element i of a draw takes the upper bits of word i%4 of
// philox({i/4, stream}, seed): 16 for bf16, 13 for f16, all for its subnormal numbers. NaN stays;
// the number beside f16's largest is infinity, in the place of 65536.
// ops/kernels/round has it for many elements.
#pragma once
#include <bit>
#include <cstdint>

#include "quern/tensor/bfloat16.h"
#include "quern/tensor/float16.h"
#include "quern/tensor/random.h"

namespace quern::detail {

/// Adds to what bf16 leaves out a number below its last bit, and so carries as often as that is far
/// on its way to the next number.
inline void round_by_chance(float x, uint32_t word, bfloat16& y) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) y = bfloat16(x);  // infinite or NaN
  else y = bfloat16::from_bits(static_cast<uint16_t>((bits + (word >> 16)) >> 16));
}

/// The same for f16, of which subnormal numbers have fewer bits: all are 2^-24 apart.
inline void round_by_chance(float x, uint32_t word, float16& y) {
  const auto bits = std::bit_cast<uint32_t>(x), size = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t half;
  if (size >= 0x47800000u) {  // 65536, which as a half is infinity
    y = float16(x);
    return;
  } else if (size >= 0x38800000u) {  // 2^-14: the exponents' biases are 127 and 15
    half = (size + (word >> 19) - (112u << 23)) >> 13;
  } else {
    const float steps = std::bit_cast<float>(size) * 0x1p24f;
    half = static_cast<uint32_t>(steps);
    half +=
        static_cast<double>(word) < static_cast<double>(steps - static_cast<float>(half)) * 0x1p32;
  }
  y = float16::from_bits(static_cast<uint16_t>(sign | half));
}

}  // namespace quern::detail
