// Eight floats: AVX2 and FMA. Only for *_avx2.cpp and above.
#pragma once
#include <immintrin.h>
#include <sleef.h>

#include "quern/ops/kernels/simd/float_vector.h"

namespace quern::kernels {
namespace {

struct Avx2 : FloatVector<xsimd::fma3<xsimd::avx2>> {
  using FloatVector::load;
  using FloatVector::store;
  static F load(const uint16_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static void store(uint16_t* p, F v) {
    const __m256i bits = round_to_bf16(v);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
  }
  static F exp(F x) { return Sleef_expf8_u10avx2(x); }
  static F log(F x) { return Sleef_logf8_u10avx2(x); }
  static F tanh(F x) { return Sleef_tanhf8_u10avx2(x); }
  static F erf(F x) { return Sleef_erff8_u10avx2(x); }
  static F pow(F x, F y) { return Sleef_powf8_u10avx2(x, y); }
};

}  // namespace
}  // namespace quern::kernels
