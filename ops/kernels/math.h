// exp, log, tanh, erf and pow of vectors of floats, by sleef, to 1.0 ULP.
// Included by files with ISA flags, so all of it has internal linkage.
#pragma once
#include <sleef.h>

#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

#define QUERN_MATH(lanes, isa)                                            \
  struct Math {                                                           \
    using F = Vec<float>;                                                 \
    static F exp(F x) { return Sleef_expf##lanes##_u10##isa(x); }         \
    static F log(F x) { return Sleef_logf##lanes##_u10##isa(x); }         \
    static F tanh(F x) { return Sleef_tanhf##lanes##_u10##isa(x); }       \
    static F erf(F x) { return Sleef_erff##lanes##_u10##isa(x); }         \
    static F pow(F x, F y) { return Sleef_powf##lanes##_u10##isa(x, y); } \
  };
#if defined(__AVX512F__)
QUERN_MATH(16, avx512f)
#elif defined(__AVX2__)
QUERN_MATH(8, avx2)
#elif defined(__x86_64__)
QUERN_MATH(4, sse2)
#else
QUERN_MATH(4, advsimd)
#endif
#undef QUERN_MATH

}  // namespace
}  // namespace quern::kernels
