// The depthwise loops for groups of few channels, not as many out as in, where there are
// permutations of two registers: a lane is an output channel, and channel i of its group comes to
// it out of the pixel's channels, as they lie.
//
//     x of a pixel, groups of 2      a b | c d | e f
//     of step 0 and 1, 3 outputs     a a a c c c e e e      b b b d d d f f f
#pragma once
#include "quern/ops/kernels/conv/depthwise/window_simd.h"

namespace quern::kernels {
namespace {

template <class T>
struct PermutedLoops {
#ifdef __AVX512F__
  using V = Vec<T>;
  static constexpr int64_t lanes = 16;
  /// Outputs whose sums, and twice as many vectors of pixels, are in registers.
  static constexpr int kBlock = 7;

  /// A vector's outputs meet no more groups than two registers hold.
  static bool takes(int64_t in, int64_t out) {
    const int64_t groups = lanes % out == 0 ? lanes / out : (lanes - 2) / out + 2;
    return groups * in <= 2 * lanes;
  }

  /// A pixel's channels from the first that a vector's outputs meet on.
  struct Channels {
    const T* first;
    __mmask16 low, high;  // those that the pixel has
    __m512i index;        // of step 0

    Channels(const DepthwiseWindow& w, int64_t c)
        : first(static_cast<const T*>(w.source) + w.index[c]),
          low(some(w.source_channels - w.index[c])),
          high(some(w.source_channels - w.index[c] - lanes)),
          index(_mm512_sub_epi32(_mm512_loadu_si512(w.index + c), _mm512_set1_epi32(w.index[c]))) {}
    static __mmask16 some(int64_t n) {
      return static_cast<__mmask16>(n >= lanes ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
    }
    __attribute__((always_inline)) static __m512 load_some(__mmask16 mask, const T* from) {
      if constexpr (sizeof(T) == 4) return _mm512_maskz_loadu_ps(mask, from);
      else {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
      }
    }
  };

  /// Sums of n outputs += all steps of a tap, from the first one's pixel on.
  template <int n>
  __attribute__((always_inline)) static void add_tap(const DepthwiseWindow& w, const Channels& from,
                                                     const T* pixel, const float* tap, V* sums) {
    __m512 low[n], high[n];
    each<n>([&](int o) __attribute__((always_inline)) {
      low[o] = Channels::load_some(from.low, pixel + o * w.stride * w.pixel);
      high[o] = Channels::load_some(from.high, pixel + o * w.stride * w.pixel + lanes);
    });
    __m512i index = from.index;
    for (int64_t i = 0; i < w.steps; ++i, tap += w.weight_channel) {
      const V weight = load(tap);
      each<n>([&](int o) __attribute__((always_inline)) {
        sums[o] = fused(V(_mm512_permutex2var_ps(low[o], index, high[o])), weight, sums[o]);
      });
      index = _mm512_add_epi32(index, _mm512_set1_epi32(1));
    }
  }

  static void sum(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                  Sums<T> out, int64_t out_pixel) {
    for (int64_t output = 0; output < w.outputs; output += kBlock) {
      const int64_t count = at_most(kBlock, w.outputs - output);
      for (int64_t begin = 0; begin < w.channels; begin += lanes) {
        const int64_t c = at_most(begin, w.channels - lanes);
        const Channels from(w, c);
        V sums[kBlock];
        each<kBlock>([&](int o) __attribute__((always_inline)) { sums[o] = V(0); });
        for (int64_t r = 0; r < w.rows; ++r)
          for (int64_t t = 0; t < w.taps; ++t) {
            const int64_t first = output * w.stride + w.offset + t * w.offset_step;
            const T* pixel = from.first + r * w.source_row + first * w.pixel;
            const float* tap = weight + r * w.weight_row + t * w.weight_tap + c;
            if (count == kBlock && first >= 0 && first + (kBlock - 1) * w.stride < w.width) {
              add_tap<kBlock>(w, from, pixel, tap, sums);
              continue;
            }
#pragma GCC unroll 7
            for (int o = 0; o < kBlock; ++o) {
              const int64_t x = first + o * w.stride;
              if (o < count && x >= 0 && x < w.width)
                add_tap<1>(w, from, pixel + o * w.stride * w.pixel, tap, sums + o);
            }
          }
        store_sums(sums, count, a.shift ? load(a.shift + c) : V(0), a.activation, out,
                   output * out_pixel + c, out_pixel);
      }
    }
  }

  /// Steps whose sums are in registers.
  static constexpr int kSteps = 4;

  static void add_gradient(const DepthwiseWindow& w, const T* dy, int64_t dy_pixel,
                           float* gradient) {
    for (int64_t begin = 0; begin < w.channels; begin += lanes) {
      const int64_t c = at_most(begin, w.channels - lanes);
      const Channels from(w, c);
      for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t t = 0; t < w.taps; ++t)
          for (int64_t step = 0; step < w.steps; step += kSteps) {
            const int64_t first = w.offset + t * w.offset_step;
            const T* pixel = from.first + r * w.source_row + first * w.pixel;
            V sums[kSteps];
            __m512i index[kSteps];
            each<kSteps>([&](int i) __attribute__((always_inline)) {
              sums[i] = V(0);
              index[i] =
                  _mm512_add_epi32(from.index, _mm512_set1_epi32(static_cast<int>(step + i)));
            });
            for (int64_t o = 0; o < w.outputs; ++o) {
              const int64_t x = first + o * w.stride;
              if (x < 0 || x >= w.width) continue;
              const T* at = pixel + o * w.stride * w.pixel;
              const __m512 low = Channels::load_some(from.low, at);
              const __m512 high = Channels::load_some(from.high, at + lanes);
              const V d = load(dy + o * dy_pixel + c);
              each<kSteps>([&](int i) __attribute__((always_inline)) {
                sums[i] = fused(V(_mm512_permutex2var_ps(low, index[i], high)), d, sums[i]);
              });
            }
            float* to = gradient + r * w.weight_row + t * w.weight_tap + c;
            each<kSteps>([&](int i) __attribute__((always_inline)) {
              if (step + i < w.steps)
                add_lanes(to + (step + i) * w.weight_channel, sums[i], begin - c);
            });
          }
    }
  }
#else
  static void add_gradient(const DepthwiseWindow&, const T*, int64_t, float*) {}
  static bool takes(int64_t, int64_t) { return false; }
  static void sum(const DepthwiseWindow&, const float*, const DepthwiseStore&, Sums<T>, int64_t) {}
#endif
};

}  // namespace
}  // namespace quern::kernels
