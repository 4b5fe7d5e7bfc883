// Resampling as its formula reads.
#include <algorithm>

#include "quern/ops/kernels/image/resample_kernel.h"

namespace quern::kernels {
namespace {

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::min((sum + (1 << (kResampleBits - 1))) >> kResampleBits, 255));
}

void along(const uint8_t* in, const ResampleAxis& axis, bool flip, uint8_t* out) {
  for (int64_t x = 0; x < axis.size; ++x)
    for (int64_t c = 0; c < 3; ++c) {
      const int64_t i = flip ? axis.size - 1 - x : x;
      int32_t sum = 0;
      for (int64_t k = 0; k < axis.count[i]; ++k)
        sum += axis.weights[i * axis.taps + k] * in[3 * (axis.begin[i] + k) + c];
      out[3 * x + c] = rounded(sum);
    }
}

void down(const uint8_t* in, int64_t step, const int32_t* weights, int64_t count, int64_t values,
          uint8_t* out) {
  for (int64_t i = 0; i < values; ++i) {
    int32_t sum = 0;
    for (int64_t k = 0; k < count; ++k) sum += weights[k] * in[k * step + i];
    out[i] = rounded(sum);
  }
}

constexpr ResampleKernel kernels[] = {{QUERN_NAMED("resample"), kIsa, along, down}};

}  // namespace

QUERN_KERNELS(ResampleKernel, resample, kernels)

}  // namespace quern::kernels
