// The copy of pixels whose groups are spread to the channels of their outputs (depthwise.h), once
// an instruction set: where there are permutations of two registers, as many outputs as one holds
// at a time.
#pragma once
#include "quern/ops/kernels/conv/depthwise/depthwise_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

template <class T>
class SpreadLoops {
  /// Outputs [c, c + n) at all pixels and steps.
  static void one_by_one(const DepthwiseSpread& s, int64_t c, int64_t n) {
    for (int64_t i = 0; i < s.steps; ++i)
      for (int64_t p = 0; p < s.pixels; ++p) {
        const T* from = static_cast<const T*>(s.from) + p * s.from_pixel + i;
        T* to = static_cast<T*>(s.to) + i * s.to_step + p * s.to_pixel;
        for (int64_t k = c; k < c + n; ++k) to[k] = from[s.index[k]];
      }
  }

#ifdef __AVX512BW__
  static constexpr int64_t lanes = 64 / sizeof(T);
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int16_t>;

  static __m512i at_step(__m512i index, int64_t i) {
    if constexpr (sizeof(T) == 4)
      return _mm512_add_epi32(index, _mm512_set1_epi32(static_cast<int>(i)));
    else return _mm512_add_epi16(index, _mm512_set1_epi16(static_cast<short>(i)));
  }
  static void store(T* to, int64_t n, __m512i lo, __m512i index, __m512i hi) {
    if constexpr (sizeof(T) == 4)
      _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << n) - 1),
                               _mm512_permutex2var_epi32(lo, index, hi));
    else
      _mm512_mask_storeu_epi16(to, static_cast<__mmask32>((uint64_t{1} << n) - 1),
                               _mm512_permutex2var_epi16(lo, index, hi));
  }
  /// If all that they meet of a pixel is in two registers.
  static void permuted(const DepthwiseSpread& s, int64_t c, int64_t n) {
    alignas(64) Index index[lanes] = {};
    for (int64_t k = 0; k < n; ++k) index[k] = static_cast<Index>(s.index[c + k] - s.index[c]);
    const __m512i of_step_0 = _mm512_load_si512(index);
    for (int64_t p = 0; p < s.pixels; ++p) {
      const T* from = static_cast<const T*>(s.from) + p * s.from_pixel + s.index[c];
      T* to = static_cast<T*>(s.to) + p * s.to_pixel + c;
      const __m512i lo = _mm512_loadu_si512(from), hi = _mm512_loadu_si512(from + lanes);
      for (int64_t i = 0; i < s.steps; ++i)
        store(to + i * s.to_step, n, lo, at_step(of_step_0, i), hi);
    }
  }
#else
  static constexpr int64_t lanes = 16;
#endif

 public:
  static void run(const DepthwiseSpread& s) {
    for (int64_t c = 0; c < s.channels; c += lanes) {
      const int64_t n = s.channels - c < lanes ? s.channels - c : lanes;
#ifdef __AVX512BW__
      if (s.index[c + n - 1] - s.index[c] + s.steps <= 2 * lanes) {
        permuted(s, c, n);
        continue;
      }
#endif
      one_by_one(s, c, n);
    }
  }
};

}  // namespace
}  // namespace quern::kernels
