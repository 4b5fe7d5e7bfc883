// Sixteen floats: AVX-512 F, BW, DQ, VL. Only for *_avx512*.cpp and above.
#pragma once
#include <immintrin.h>
#include <sleef.h>

#include "quern/ops/kernels/simd/float_vector.h"

namespace quern::kernels {
namespace {

struct Avx512 : FloatVector<xsimd::avx512bw> {
  using FloatVector::load;
  using FloatVector::store;
  static F load(const uint16_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static void store(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(round_to_bf16(v)));
  }
  static F exp(F x) { return Sleef_expf16_u10avx512f(x); }
  static F log(F x) { return Sleef_logf16_u10avx512f(x); }
  static F tanh(F x) { return Sleef_tanhf16_u10avx512f(x); }
  static F erf(F x) { return Sleef_erff16_u10avx512f(x); }
  static F pow(F x, F y) { return Sleef_powf16_u10avx512f(x, y); }
};

}  // namespace
}  // namespace quern::kernels
