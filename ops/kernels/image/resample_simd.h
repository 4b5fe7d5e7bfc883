// Resampling in vectors of 32-bit integers, once an instruction set: of four lanes for a pixel,
// whose fourth is the next one's first value and is overwritten by it, and along a row as long as
// there are. A weight of 22 bits times 8 bits, summed, fits 31.
#pragma once
#include <cstdint>
#include <cstring>

#include "quern/ops/kernels/image/resample_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

template <int64_t lanes>
using Bytes = typename Native<uint8_t, lanes>::type;
template <int64_t lanes>
using Sums = typename Native<int32_t, lanes>::type;

template <int64_t lanes>
Sums<lanes> load(const uint8_t* in) {
#if defined(__AVX512F__)
  if constexpr (lanes == 16)
    return (Sums<16>)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128((const __m128i*)in));
#endif
#if defined(__AVX2__)
  if constexpr (lanes == 8)
    return (Sums<8>)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)in));
  if constexpr (lanes == 4) {
    int32_t four;
    std::memcpy(&four, in, 4);
    return (Sums<4>)_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
  }
#endif
  Bytes<lanes> bytes;
  std::memcpy(&bytes, in, lanes);
  return __builtin_convertvector(bytes, Sums<lanes>);
}

template <int64_t lanes>
void store_rounded(Sums<lanes> sum, uint8_t* out) {
  const Sums<lanes> value = (sum + (1 << (kResampleBits - 1))) >> kResampleBits;
  const Bytes<lanes> bytes =
      __builtin_convertvector(value > 255 ? Sums<lanes>{} + 255 : value, Bytes<lanes>);
  std::memcpy(out, &bytes, lanes);
}

void along(const uint8_t* in, const ResampleAxis& axis, bool flip, uint8_t* out) {
  for (int64_t x = 0; x < axis.size; ++x) {
    const int64_t i = flip ? axis.size - 1 - x : x, count = axis.count[i];
    const uint8_t* pixel = in + 3 * axis.begin[i];
    const int32_t* weights = axis.weights + i * axis.taps;
    Sums<4> sum{};
    for (int64_t k = 0; k < count; ++k) sum += weights[k] * load<4>(pixel + 3 * k);
    store_rounded<4>(sum, out + 3 * x);
  }
}

template <int64_t lanes>
void down_block(const uint8_t* in, int64_t step, const int32_t* weights, int64_t count,
                uint8_t* out) {
  Sums<lanes> sum{};
  for (int64_t k = 0; k < count; ++k) sum += weights[k] * load<lanes>(in + k * step);
  store_rounded<lanes>(sum, out);
}

void down(const uint8_t* in, int64_t step, const int32_t* weights, int64_t count, int64_t values,
          uint8_t* out) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= values; i += lanes) down_block<lanes>(in + i, step, weights, count, out + i);
  for (; i < values; ++i) {
    int32_t sum = 1 << (kResampleBits - 1);
    for (int64_t k = 0; k < count; ++k) sum += weights[k] * in[k * step + i];
    sum >>= kResampleBits;
    out[i] = static_cast<uint8_t>(sum > 255 ? 255 : sum);
  }
}

constexpr ResampleKernel kernels[] = {{QUERN_NAMED("resample"), kIsa, along, down}};

}  // namespace

QUERN_KERNELS(ResampleKernel, resample, kernels)

}  // namespace quern::kernels
