// The depthwise kernels on vectors of xsimd, once an instruction set. A vector lies along channels;
// neighbouring outputs' sums stay in registers, so that a pixel is loaded (and widened) once for
// all of them that it meets under a row of taps.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/conv/depthwise/backward_simd.h"
#include "quern/ops/kernels/conv/depthwise/grouped_simd.h"
#include "quern/ops/kernels/conv/depthwise/permuted_simd.h"
#include "quern/ops/kernels/conv/depthwise/planes_simd.h"
#include "quern/ops/kernels/conv/depthwise/slide_simd.h"
#include "quern/ops/kernels/conv/depthwise/spread_simd.h"

namespace quern::kernels {
namespace {

template <class T>
struct DepthwiseLoops {
  using V = Vec<T>;
  static constexpr int64_t lanes = kLanes<T>;
  /// Outputs whose dy is in registers, beside the sums of some rows of taps.
  static constexpr int kGradients = 4;

  // Windows whose taps are neighbours; `stride` pixels from one to the next.

  /// f(n), a constant: so many of `left` taps in a row the loops take at once. Returns n.
  template <class F>
  __attribute__((always_inline)) static int64_t some_taps(int64_t left, F f) {
    if (left >= 7) return f(std::integral_constant<int, 7>{}), 7;
    if (left >= 5) return f(std::integral_constant<int, 5>{}), 5;
    if (left == 4) return f(std::integral_constant<int, 4>{}), 4;
    if (left >= 3) return f(std::integral_constant<int, 3>{}), 3;
    if (left == 2) return f(std::integral_constant<int, 2>{}), 2;
    return f(std::integral_constant<int, 1>{}), 1;
  }

  /// sum += a row's pixels under `taps` neighbours; position 0 is at `row`.
  template <int taps, int stride>
  __attribute__((always_inline)) static void add_row(const DepthwiseWindow& w,
                                                     const Positions& live, const T* row,
                                                     const float* weight, V (&sum)[kOutputs]) {
    V tap[taps];
    unroll<taps>([&](int t) { tap[t] = load(weight + t * w.weight_tap); });
#pragma GCC unroll 32
    for (int p = 0; p < (kOutputs - 1) * stride + taps; ++p) {
      if (!live.has(p)) continue;
      const V x = load(row + p * w.pixel);
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t)
        if (p >= t && (p - t) % stride == 0 && p - t < kOutputs * stride)
          sum[(p - t) / stride] = fused(x, tap[t], sum[(p - t) / stride]);
    }
  }

  /// Two vectors of channels at a time, 3 taps: what comes from L2 and beyond is asked for by more
  /// loads at once, and where pixels meet in few sets of the first-level cache (cache::collides), a
  /// line is still there for its second half. Loops over whole windows have no turns: rows follow
  /// each other sooner.
  template <int stride>
  __attribute__((always_inline)) static void sum_pair(const DepthwiseWindow& w,
                                                      const Positions& live, const float* weight,
                                                      const DepthwiseStore& a, int64_t count,
                                                      int64_t c, Sums<T> out, int64_t to,
                                                      int64_t out_pixel) {
    V low[kOutputs], high[kOutputs];
    unroll<kOutputs>([&](int i) { low[i] = high[i] = V(0); });
    const auto add = [&](int64_t r) __attribute__((always_inline)) {
      const T* row = static_cast<const T*>(w.source) + live.first * w.pixel + c + r * w.source_row;
      const float* of_row = weight + c + r * w.weight_row;
      if (r >= w.rows - w.fresh) prefetch_next(w, live, row);
      add_row_pair<stride>(w, live, row, of_row, low, high);
    };
    if (w.rows == 3) add(0), add(1), add(2);
    else
      for (int64_t r = 0; r < w.rows; ++r) add(r);
    store_outputs<T>(low, count, a, c, 0, out, to, out_pixel);
    store_outputs<T>(high, count, a, c + lanes, 0, out, to + lanes, out_pixel);
  }
  /// add_row() of 3 taps and two vectors.
  template <int stride>
  __attribute__((always_inline)) static void add_row_pair(const DepthwiseWindow& w,
                                                          const Positions& live, const T* row,
                                                          const float* weight, V (&low)[kOutputs],
                                                          V (&high)[kOutputs]) {
    V tap[3], tap_high[3];
    unroll<3>([&](int t) {
      tap[t] = load(weight + t * w.weight_tap);
      tap_high[t] = load(weight + t * w.weight_tap + lanes);
    });
#pragma GCC unroll 32
    for (int p = 0; p < (kOutputs - 1) * stride + 3; ++p) {
      if (!live.has(p)) continue;
      const V x = load(row + p * w.pixel), x_high = load(row + p * w.pixel + lanes);
#pragma GCC unroll 3
      for (int t = 0; t < 3; ++t)
        if (p >= t && (p - t) % stride == 0 && p - t < kOutputs * stride) {
          low[(p - t) / stride] = fused(x, tap[t], low[(p - t) / stride]);
          high[(p - t) / stride] = fused(x_high, tap_high[t], high[(p - t) / stride]);
        }
    }
  }

  /// `known`: w.taps, or 0, where they are taken some at a time.
  template <int known, int stride>
  static void sum_dense(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                        Sums<T> out, int64_t out_pixel) {
    // Where memory is waited for, two vectors are better only if they are halves of a line, and
    // pixels are a multiple of 512 bytes apart, so that it would be gone for its second half.
    [[maybe_unused]] const bool pairs =
        w.fresh == 0 || (lanes * sizeof(T) < 64 && w.pixel % 256 == 0);
    for (int64_t output = 0; output < w.outputs; output += kOutputs) {
      const int64_t count = at_most(kOutputs, w.outputs - output);
      const Positions live(w, output, count);
      int64_t begin = 0;
      if constexpr (known == 3 && lanes == 16)
        for (; pairs && begin + 2 * lanes <= w.channels; begin += 2 * lanes)
          sum_pair<stride>(w, live, weight, a, count, begin, out, output * out_pixel + begin,
                           out_pixel);
      for (; begin < w.channels; begin += lanes) {
        const int64_t c = at_most(begin, w.channels - lanes);
        const T* row = static_cast<const T*>(w.source) + live.first * w.pixel + c;
        const float* of_row = weight + c;
        V sum[kOutputs];
        unroll<kOutputs>([&](int i) { sum[i] = V(0); });
        for (int64_t r = 0; r < w.rows; ++r, row += w.source_row, of_row += w.weight_row) {
          if (r >= w.rows - w.fresh) prefetch_next(w, live, row);
          if constexpr (known > 0) add_row<known, stride>(w, live, row, of_row, sum);
          else
            for (int64_t t = 0; t < w.taps;)
              t += some_taps(
                  w.taps - t, [&](auto taps) __attribute__((always_inline)) {
                    add_row<taps(), stride>(w, {w, output, count, t, taps()}, row + t * w.pixel,
                                            of_row + t * w.weight_tap, sum);
                  });
        }
        store_outputs<T>(sum, count, a, c, begin - c, out, output * out_pixel + c, out_pixel);
      }
    }
  }

  /// The products of `outputs` outputs from `output` on with `rows` rows of the source.
  template <int rows, int taps, int stride, int outputs>
  __attribute__((always_inline)) static void multiply(const DepthwiseWindow& w, const T* source,
                                                      const T* dy, int64_t dy_pixel, int64_t output,
                                                      V (&sum)[rows][taps]) {
    constexpr int positions = (outputs - 1) * stride + taps;
    const Positions live(w, output, outputs);
    V d[outputs];
    unroll<outputs>([&](int i) { d[i] = load(dy + (output + i) * dy_pixel); });
    for (int64_t r = rows - w.fresh; r < rows; ++r)
      prefetch_next(w, live, source + live.first * w.pixel + r * w.source_row);
    if (w.fresh > 0)
      for (int i = 0; i < outputs; ++i)
        __builtin_prefetch(dy + (output + i + w.outputs) * dy_pixel);
#pragma GCC unroll 32
    for (int p = 0; p < positions; ++p) {
      if (!live.has(p)) continue;
      const T* column = source + (live.first + p) * w.pixel;
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const V x = load(column + r * w.source_row);
#pragma GCC unroll 8
        for (int t = 0; t < taps; ++t)
          if (p >= t && (p - t) % stride == 0 && p - t < outputs * stride)
            sum[r][t] = fused(x, d[(p - t) / stride], sum[r][t]);
      }
    }
  }

  template <int rows, int taps, int stride>
  static void gradient_rows(const DepthwiseWindow& w, const T* source, const T* dy,
                            int64_t dy_pixel, float* gradient) {
    for (int64_t begin = 0; begin < w.channels; begin += lanes) {
      const int64_t c = at_most(begin, w.channels - lanes);
      V sum[rows][taps];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < taps; ++t) sum[r][t] = V(0);
      int64_t i = 0;
      for (; i + kGradients <= w.outputs; i += kGradients)
        multiply<rows, taps, stride, kGradients>(w, source + c, dy + c, dy_pixel, i, sum);
      for (; i < w.outputs; ++i)
        multiply<rows, taps, stride, 1>(w, source + c, dy + c, dy_pixel, i, sum);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < taps; ++t)
          add_lanes(gradient + r * w.weight_row + t * w.weight_tap + c, sum[r][t], begin - c);
    }
  }

  template <int taps, int stride>
  static void gradient_of_taps(const DepthwiseWindow& w, const T* dy, int64_t dy_pixel,
                               float* gradient) {
    constexpr int at_once =
        taps == 3 ? 3 : 1;  // sums enough that they need not wait for each other
    const T* source = static_cast<const T*>(w.source);
    DepthwiseWindow part = w;
    for (int64_t r = 0; r < w.rows;) {
      const int64_t left = w.rows - r;
      part.fresh = left > at_once ? 0 : w.fresh;
      if (left >= at_once)
        gradient_rows<at_once, taps, stride>(part, source + r * w.source_row, dy, dy_pixel,
                                             gradient + r * w.weight_row);
      else
        gradient_rows<1, taps, stride>(part, source + r * w.source_row, dy, dy_pixel,
                                       gradient + r * w.weight_row);
      r += left >= at_once ? at_once : 1;
    }
  }

  template <int known, int stride>
  static void gradient_dense(const DepthwiseWindow& w, const T* dy, int64_t dy_pixel,
                             float* gradient) {
    if constexpr (known > 0) return gradient_of_taps<known, stride>(w, dy, dy_pixel, gradient);
    DepthwiseWindow some = w;
    for (int64_t t = 0; t < w.taps; some.fresh = 0) {
      some.offset = w.offset + t;
      t += some_taps(w.taps - t, [&](auto taps) {
        some.taps = taps();
        gradient_of_taps<taps(), stride>(some, dy, dy_pixel, gradient + t * w.weight_tap);
      });
    }
  }

  // Any window.

  /// `outputs` outputs from one on, `vectors` vectors of channels from c on, whose first lanes
  /// another vector has, too.
  template <int outputs, int vectors>
  static void sum_block(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                        int64_t output, int64_t c, int64_t first_lane, Sums<T> out,
                        int64_t out_pixel) {
    V sum[vectors][outputs];
    each<vectors>([&](auto v) { each<outputs>([&](auto i) { sum[v][i] = V(0); }); });
    for (int64_t r = 0; r < w.rows; ++r)
      for (int64_t t = 0; t < w.taps; ++t) {
        const int64_t first = output * w.stride + w.offset + t * w.offset_step;
        const T* from = static_cast<const T*>(w.source) + r * w.source_row + first * w.pixel + c;
        const float* tap = weight + r * w.weight_row + t * w.weight_tap + c;
        const auto add = [&](auto i) __attribute__((always_inline)) {
          each<vectors>([&](auto v) __attribute__((always_inline)) {
            sum[v][i] = fused(load(from + i * w.stride * w.pixel + v * lanes),
                              load(tap + v * lanes), sum[v][i]);
          });
        };
        if (first >= 0 && first + (outputs - 1) * w.stride < w.width) {
          each<outputs>(add);
          continue;
        }
        each<outputs>([&](auto i) __attribute__((always_inline)) {
          const int64_t x = first + i * w.stride;
          if (x >= 0 && x < w.width) add(i);
        });
      }
    each<vectors>([&](auto v) __attribute__((always_inline)) {
      store_outputs<T>(sum[v], at_most(outputs, w.outputs - output), a, c + v * lanes, first_lane,
                       out, output * out_pixel + c + v * lanes, out_pixel);
    });
  }

  /// Where no output's pixels are another's, some vectors of channels of two outputs at a time:
  /// pixels are read by whole lines then, in the order in which they lie.
  static void sum_any(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                      Sums<T> out, int64_t out_pixel) {
    const bool apart = w.stride >= w.taps;
    for (int64_t output = 0; output < w.outputs; output += apart ? 2 : kOutputs) {
      int64_t c = 0;
      const auto whole = [&](auto vectors) {
        for (; c + vectors() * lanes <= w.channels; c += vectors() * lanes)
          sum_block<2, vectors()>(w, weight, a, output, c, 0, out, out_pixel);
      };
      if (apart) whole(std::integral_constant<int, 4>{}), whole(std::integral_constant<int, 2>{});
      for (; c < w.channels; c += lanes) {
        const int64_t begin = at_most(c, w.channels - lanes);
        const auto sum = apart ? sum_block<2, 1> : sum_block<kOutputs, 1>;
        sum(w, weight, a, output, begin, c - begin, out, out_pixel);
      }
    }
  }

  static void gradient_any(const DepthwiseWindow& w, const T* dy, int64_t dy_pixel,
                           float* gradient) {
    for (int64_t begin = 0; begin < w.channels; begin += lanes) {
      const int64_t c = at_most(begin, w.channels - lanes);
      for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t t = 0; t < w.taps; ++t) {
          const int64_t first = w.offset + t * w.offset_step;
          const T* row = static_cast<const T*>(w.source) + r * w.source_row + c;
          V sum[kGradients];
          unroll<kGradients>([&](int k) { sum[k] = V(0); });
          const auto product = [&](int64_t i, V so_far) {
            return fused(load(row + (first + i * w.stride) * w.pixel), load(dy + i * dy_pixel + c),
                         so_far);
          };
          int64_t i = first < 0 ? (w.stride - 1 - first) / w.stride : 0, end = w.outputs;
          while (end > i && first + (end - 1) * w.stride >= w.width) --end;
          for (; i + kGradients <= end; i += kGradients)
            unroll<kGradients>([&](int k) { sum[k] = product(i + k, sum[k]); });
          for (; i < end; ++i) sum[0] = product(i, sum[0]);
          add_lanes(gradient + r * w.weight_row + t * w.weight_tap + c,
                    (sum[0] + sum[1]) + (sum[2] + sum[3]), begin - c);
        }
    }
  }

  /// f(taps, stride), constants, for a window whose taps are neighbours; taps is 0 where loops take
  /// them some at a time. Else false.
  template <class F>
  static bool is_dense(const DepthwiseWindow& w, F f) {
    const auto taps = [&](auto stride) {
      switch (w.taps) {
        case 1: return f(std::integral_constant<int, 1>{}, stride);
        case 2: return f(std::integral_constant<int, 2>{}, stride);
        case 3: return f(std::integral_constant<int, 3>{}, stride);
        case 4: return f(std::integral_constant<int, 4>{}, stride);
        case 5: return f(std::integral_constant<int, 5>{}, stride);
        case 7: return f(std::integral_constant<int, 7>{}, stride);
        default: return f(std::integral_constant<int, 0>{}, stride);
      }
    };
    if ((w.offset_step != 1 && w.taps > 1) || w.stride > 3) return false;
    if (w.stride == 1) taps(std::integral_constant<int, 1>{});
    else if (w.stride == 2) taps(std::integral_constant<int, 2>{});
    else f(std::integral_constant<int, 0>{}, std::integral_constant<int, 3>{});
    return true;
  }

  static void sum_to(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                     Sums<T> out, int64_t out_pixel) {
    if (w.index) return PermutedLoops<T>::sum(w, weight, a, out, out_pixel);
    if (w.group > 1)
      return of_group<T>(w.group, [&](auto loops) { loops.sum(w, weight, a, out, out_pixel); });
    if (!is_dense(w, [&](auto taps, auto stride) {
          sum_dense<taps(), stride()>(w, weight, a, out, out_pixel);
        }))
      sum_any(w, weight, a, out, out_pixel);
  }

  static void sum(const DepthwiseWindow& w, const float* weight, float* out, int64_t out_pixel) {
    sum_to(w, weight, {}, {.to = out, .wide = true}, out_pixel);
  }

  static void store_row(const DepthwiseWindow& w, const float* weight, const DepthwiseStore& a,
                        void* out, int64_t out_pixel) {
    sum_to(w, weight, a, {.to = out, .streams = a.streams}, out_pixel);
  }

  static void add_gradient(const DepthwiseWindow& w, const void* dy, int64_t dy_pixel,
                           float* gradient) {
    const T* d = static_cast<const T*>(dy);
    if (w.index) return PermutedLoops<T>::add_gradient(w, d, dy_pixel, gradient);
    if (w.group > 1)
      return of_group<T>(w.group,
                         [&](auto loops) { loops.add_gradient(w, d, dy_pixel, gradient); });
    if (!is_dense(w, [&](auto taps, auto stride) {
          gradient_dense<taps(), stride()>(w, d, dy_pixel, gradient);
        }))
      gradient_any(w, d, dy_pixel, gradient);
  }

  static constexpr DepthwiseKernel record(const char* name, DType dtype) {
    return {name,
            kIsa,
            dtype,
            sum,
            store_row,
            SlidingLoops<T>::store_rows,
            SlidingLoops<T>::takes,
            PermutedLoops<T>::takes,
            PlaneLoops<T>::store,
            add_gradient,
            BackwardLoops<T>::run,
            SpreadLoops<T>::run,
            kMultipliesPairs<T>,
            kWidestGroup<T>};
  }
};

constexpr DepthwiseKernel kRecords[] = {
    DepthwiseLoops<bfloat16>::record(QUERN_NAMED("depthwise_bf16"), DType::bf16),
#if !defined(__AVX512BF16__) && !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)  // they only round
    DepthwiseLoops<float>::record(QUERN_NAMED("depthwise_f32"), DType::f32),
#endif
};

}  // namespace

QUERN_KERNELS(DepthwiseKernel, depthwise, kRecords)

}  // namespace quern::kernels
