// The depthwise loops along the rows of planes: as those along channels (depthwise_simd.h), with
// rows and columns exchanged.
#pragma once
#include "quern/ops/kernels/conv/depthwise/window_simd.h"

namespace quern::kernels {
namespace {

template <class T>
struct PlaneLoops {
  using V = Vec<T>;
  static constexpr int64_t lanes = kLanes<T>;

  /// The lanes from `begin` on and before `end`.
  static auto lanes_between(int64_t begin, int64_t end) {
    alignas(64) static constexpr float kIndex[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
    const V index = load(kIndex);
    const auto clamped = [](int64_t i) {
      return V(static_cast<float>(i < 0 ? 0 : at_most(i, lanes)));
    };
    return (index >= clamped(begin)) & (index < clamped(end));
  }

  /// A column of neighbouring outputs' sums, each a vector along its row.
  template <int rows>
  static void run(const DepthwisePlane& p, const float* weight, const DepthwiseStore& a,
                  Sums<T> out) {
    constexpr int positions = kOutputs + rows - 1;
    for (int64_t output = 0; output < p.out_height; output += kOutputs) {
      const int64_t count = at_most(kOutputs, p.out_height - output);
      const int64_t first = output + p.top, begin = first < 0 ? -first : 0;
      const int64_t end = at_most(count - 1 + rows, p.height - first);
      for (int64_t column = 0; column < p.out_width; column += lanes) {
        const int64_t x = p.out_width < lanes ? 0 : at_most(column, p.out_width - lanes);
        const auto of_lanes = [&](const float* values) {
          return p.channels == 0 ? V(*values) : load(values + x % p.channels);
        };
        V sum[kOutputs];
        unroll<kOutputs>([&](int i) { sum[i] = V(0); });
        const T* source = static_cast<const T*>(p.source) + first * p.width;
        const float* of_source = weight;
        for (int64_t k = 0; k < p.sources; ++k) {
          for (int64_t t = 0; t < p.taps; ++t) {
            const int64_t left = x + p.left + t * p.step;
            const auto inside = lanes_between(-left, p.width - left);
            const T* from = source + left;
            V tap[rows];
            unroll<rows>([&](int r) {  // 0 for padding: 0 times infinity would be NaN
              const V all = of_lanes(of_source + r * p.weight_row + t * p.weight_tap);
              tap[r] = xsimd::select(inside, all, V(0));
            });
#pragma GCC unroll 32
            for (int y = 0; y < positions; ++y) {
              if (y < begin || y >= end) continue;
              const V pixels = xsimd::select(inside, load(from + y * p.width), V(0));
              if (t == 0) __builtin_prefetch(from + (y + kOutputs) * p.width);
#pragma GCC unroll 8
              for (int r = 0; r < rows; ++r)
                if (y >= r && y - r < kOutputs) sum[y - r] = fused(pixels, tap[r], sum[y - r]);
            }
          }
          source += p.height * p.width, of_source += p.weight_source;
        }
        store_sums(sum, count, a.shift ? of_lanes(a.shift) : V(0), a.activation, out,
                   output * p.out_width + x, p.out_width);
      }
    }
  }

  static void store(const DepthwisePlane& p, const float* weight, const DepthwiseStore& a,
                    void* out) {
    const Sums<T> to{out};
    switch (p.rows) {
      case 1: return run<1>(p, weight, a, to);
      case 2: return run<2>(p, weight, a, to);
      case 3: return run<3>(p, weight, a, to);
      case 5: return run<5>(p, weight, a, to);
      case 7: return run<7>(p, weight, a, to);
    }
  }
};

}  // namespace
}  // namespace quern::kernels
