// Both gradients of a depthwise convolution in one pass, once an instruction set: dx = Σ dy·weight
// and dw = Σ x·dy over the same pairs of pixels, so that dy is loaded once for two products, and x
// and dx pass by memory once. A block of pixels has its sums and its x in registers, a row of taps
// beside them.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/conv/depthwise/window_simd.h"

namespace quern::kernels {
namespace {

template <class T>
class BackwardLoops {
  using V = Vec<T>;
  static constexpr int64_t lanes = kLanes<T>;
  /// Of a block: networks halve rows of 224 pixels down to 7.
  static constexpr int kPixels = kRegisters == 32 ? 7 : 4;

  /// Some pixels and a vector of channels.
  struct Block {
    V z[kPixels];      // x as it is read
    V slope[kPixels];  // of the activation, where that takes an exponential
    V sum[kPixels];    // Σ dy · weight
  };

  static V rounded(V v) {
    if constexpr (std::is_same_v<T, bfloat16>) return widened<T>(to_bf16(v));
    else return v;
  }

  /// A block's sums, and the products that it adds to the gradient, from `output` and channel c on.
  using Multiply = void (*)(const DepthwiseWindow&, int64_t output, int64_t c, int64_t first_lane,
                            const float* weight, float* gradient, Block&);
  template <int taps, int pixels>
  static void multiply(const DepthwiseWindow& w, int64_t output, int64_t c, int64_t first_lane,
                       const float* weight, float* gradient, Block& block) {
    const Positions live(w, output, pixels);
    const T* row = static_cast<const T*>(w.source) + live.first * w.pixel + c;
    weight += c, gradient += c;
    V sum[pixels], z[pixels];
#pragma GCC unroll 8
    for (int i = 0; i < pixels; ++i) sum[i] = V(0), z[i] = block.z[i];
    for (int64_t r = 0; r < w.rows; ++r) {
      if (r >= w.rows - w.fresh) prefetch_next(w, live, row);
      V tap[taps], product[taps];
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) tap[t] = load(weight + t * w.weight_tap), product[t] = V(0);
#pragma GCC unroll 16
      for (int p = 0; p < pixels + taps - 1; ++p) {
        if (!live.has(p)) continue;
        const V d = load(row + p * w.pixel);
#pragma GCC unroll 8
        for (int t = 0; t < taps; ++t) {
          if (p < t || p - t >= pixels) continue;
          sum[p - t] = fused(d, tap[t], sum[p - t]);
          product[t] = fused(d, z[p - t], product[t]);
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) add_lanes(gradient + t * w.weight_tap, product[t], first_lane);
      row += w.source_row, weight += w.weight_row, gradient += w.weight_row;
    }
#pragma GCC unroll 8
    for (int i = 0; i < pixels; ++i) block.sum[i] = sum[i];
  }
  /// Blocks of kPixels and, at the end of a row, of 4, 2 and 1.
  template <int taps>
  static Multiply of_pixels(int64_t pixels) {
    if (pixels == kPixels) return multiply<taps, kPixels>;
    if (pixels == 4) return multiply<taps, 4>;
    return pixels == 2 ? multiply<taps, 2> : multiply<taps, 1>;
  }
  static Multiply select(int64_t taps, int64_t pixels) {
    static_assert(kBackwardTaps == 7);
    switch (taps) {
      case 1: return of_pixels<1>(pixels);
      case 2: return of_pixels<2>(pixels);
      case 3: return of_pixels<3>(pixels);
      case 4: return of_pixels<4>(pixels);
      case 5: return of_pixels<5>(pixels);
      case 6: return of_pixels<6>(pixels);
      default: return of_pixels<7>(pixels);
    }
  }

  /// With a map, or with none, whose activation is none.
  template <bool mapped, Activation activation>
  static void row(const DepthwiseWindow& w, const float* weight, const DepthwiseBackward& b) {
    constexpr bool keeps_slope = activation == Activation::silu;
    const T* x_row = static_cast<const T*>(b.x);
    T* dx_row = static_cast<T*>(b.dx);
    const bool streams = kStreams && b.streams;
    const auto array = [](const void* p) { return static_cast<const float*>(p); };
    for (int64_t output = 0, pixels; output < w.outputs; output += pixels) {
      const int64_t left = w.outputs - output;
      pixels = left >= kPixels ? kPixels : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const Multiply multiply = select(w.taps, pixels);
      const T* x = x_row + output * b.pixel;
      T* dx = dx_row + output * b.pixel;
      for (int64_t begin = 0; begin < w.channels; begin += lanes) {
        const int64_t c = at_most(begin, w.channels - lanes), first_lane = begin - c;
        V center, scale, shift;
        if constexpr (mapped)
          center = load(array(b.map.center) + c), scale = load(array(b.map.scale) + c),
          shift = load(array(b.map.shift) + c);
        Block block;
        for (int64_t i = 0; i < pixels; ++i) {
          const T* at = x + i * b.pixel + c;
          if (b.to_next_row > 0) __builtin_prefetch(at + b.to_next_row);
          V z = load(at);
          if constexpr (mapped) {
            const V v = normalised(z, center, scale, shift);
            if constexpr (keeps_slope) z = silu(v, block.slope[i]);
            else z = activated(v, activation);
            z = rounded(z);
          }
          block.z[i] = z;
        }
        multiply(w, output, c, first_lane, weight, b.gradient, block);
        V first(0), second(0);
        for (int64_t i = 0; i < pixels; ++i) {
          T* to = dx + i * b.pixel + c;
          if (!streams && b.to_next_row > 0) __builtin_prefetch(to + b.to_next_row, 1);
          V d = block.sum[i];
          if constexpr (mapped) {
            const V v = load(x + i * b.pixel + c);
            if constexpr (keeps_slope) d = d * block.slope[i];
            else d = through(d, normalised(v, center, scale, shift), activation);
            first += d;
            second = fused(d, v - center, second);
          }
          if (streams) stream(to, d);
          else store(to, d);
        }
        if constexpr (mapped) {
          add_lanes(b.first + c, first, first_lane);
          add_lanes(b.second + c, second, first_lane);
        }
      }
    }
  }

 public:
  static void run(const DepthwiseWindow& w, const float* weight, const DepthwiseBackward& b) {
    if (!b.map.scale) row<false, Activation::none>(w, weight, b);
    else as_constant(b.map.activation, [&](auto a) { row<true, a()>(w, weight, b); });
  }
};

}  // namespace
}  // namespace quern::kernels
