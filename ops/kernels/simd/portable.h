// Four floats of the baseline: SSE2 on x86-64, Neon on 64-bit Arm.
#pragma once
#include <sleef.h>

#include "quern/ops/kernels/simd/float_vector.h"

namespace quern::kernels {
namespace {

#if defined(__x86_64__)
using PortableArch = xsimd::sse2;
#define QUERN_SLEEF(name) Sleef_##name##f4_u10sse2
#else
using PortableArch = xsimd::neon64;
#define QUERN_SLEEF(name) Sleef_##name##f4_u10advsimd
#endif

struct Portable : FloatVector<PortableArch> {
  using FloatVector::load;
  using FloatVector::store;
  static F load(const uint16_t* p) {
    int32_t halves[lanes];
    for (int64_t i = 0; i < lanes; ++i) halves[i] = p[i];
    return xsimd::bitwise_cast<F>(I::load_unaligned(halves) << 16);
  }
  static void store(uint16_t* p, F v) {
    int32_t bits[lanes];
    round_to_bf16(v).store_unaligned(bits);
    for (int64_t i = 0; i < lanes; ++i) p[i] = static_cast<uint16_t>(bits[i]);
  }
  static F exp(F x) { return QUERN_SLEEF(exp)(x); }
  static F log(F x) { return QUERN_SLEEF(log)(x); }
  static F tanh(F x) { return QUERN_SLEEF(tanh)(x); }
  static F erf(F x) { return QUERN_SLEEF(erf)(x); }
  static F pow(F x, F y) { return QUERN_SLEEF(pow)(x, y); }
};
#undef QUERN_SLEEF

}  // namespace
}  // namespace quern::kernels
