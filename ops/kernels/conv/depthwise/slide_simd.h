// Square windows of neighbouring taps, one or two pixels from one to the next, that slide down the
// source: sums of all rows of outputs that a row of it meets are in registers, so that each pixel
// is loaded (and widened) once for all outputs of the columns that meet it, not once for each row
// of them. With stride 1 and 3×3:
//
//     source row r         sums of rows
//     x x x x x x x x x    r - 2  += x · weights of row 2    complete: stored
//                          r - 1  += x · weights of row 1
//                          r      += x · weights of row 0
#pragma once
#include "quern/ops/kernels/conv/depthwise/window_simd.h"

namespace quern::kernels {
namespace {

template <class T>
struct SlidingLoops {
  using V = Vec<T>;
  static constexpr int64_t lanes = kLanes<T>;

  /// Rows of outputs that a row of the source meets at most.
  static constexpr int rows_met(int taps, int stride) { return (taps + stride - 1) / stride; }
  /// Columns of outputs whose sums, of so many rows, are in registers beside the pixels that they
  /// meet and a weight. Of 3×3, 7 where there are 32 registers: widths are often multiples of that.
  static constexpr int columns(int taps, int stride) {
    return (kRegisters - 1 - taps + stride) / (rows_met(taps, stride) + stride);
  }
  /// Below two columns, weights would be loaded for one product each.
  static constexpr bool takes(int64_t taps, int64_t stride) {
    return (taps == 3 || taps == 5) && (stride == 1 || stride == 2) &&
           columns(static_cast<int>(taps), static_cast<int>(stride)) > 1;
  }

  /// sum += a row of the source, row `phase` of its step, for the outputs that it meets: from
  /// `first` on, of which there are `count`.
  template <int taps, int stride, int phase, int sums>
  __attribute__((always_inline)) static void add_row(const DepthwiseWindow& w,
                                                     const Positions& live, const T* row,
                                                     const float* weight, int64_t first,
                                                     int64_t count, V (&sum)[sums]) {
    constexpr int n = columns(taps, stride), positions = (n - 1) * stride + taps;
    constexpr int met = rows_met(taps, stride);
    V x[positions];
    each<positions>([&](auto p) __attribute__((always_inline)) {
      x[p] = live.has(p) ? load(row + p * w.pixel) : V(0);
    });
    if (w.fresh > 0)  // of the next columns
      each<n * stride>([&](auto p) __attribute__((always_inline)) {
        __builtin_prefetch(row + (positions + p) * w.pixel, 0, 2);
      });
    each<met>([&](auto i) __attribute__((always_inline)) {
      constexpr int tap_row = phase + stride * (met - 1 - i);
      if constexpr (tap_row >= taps) return;
      if (first + i < 0 || first + i >= count) return;
      const float* of_row = weight + tap_row * w.weight_row;
      each<taps>([&](auto t) __attribute__((always_inline)) {
        const V tap = load(of_row + t * w.weight_tap);
        each<n>([&](auto j) __attribute__((always_inline)) {
          sum[i * n + j] = fused(x[j * stride + t], tap, sum[i * n + j]);
        });
      });
    });
  }

  /// Channels from c on of the columns from `output` on. Weights are finite: pixels of padding,
  /// which are zeros, add nothing to sums then.
  template <int taps, int stride>
  static void slide(const DepthwiseWindow& w, const DepthwiseRows& rows, const float* weight,
                    const DepthwiseStore& a, Sums<T> out, int64_t out_pixel, int64_t output,
                    int64_t c) {
    constexpr int n = columns(taps, stride), met = rows_met(taps, stride);
    const int64_t count = at_most(n, w.outputs - output);
    const Positions live(w, output, count);
    const T* row =
        static_cast<const T*>(w.source) + rows.begin * w.source_row + live.first * w.pixel + c;
    int64_t to = output * out_pixel + c;
    V sum[met * n];  // of output row step - (met - 1) + i, from i · n on
    each<met * n>([&](auto i) __attribute__((always_inline)) { sum[i] = V(0); });

    for (int64_t step = 0; step < rows.count + met - 1; ++step) {
      const int64_t r = step * stride, first = step - (met - 1);
      if (rows.begin <= r && r < rows.end) {
        add_row<taps, stride, 0>(w, live, row, weight + c, first, rows.count, sum);
        row += w.source_row;
      }
      if (first >= 0) {  // its last row of taps is the first row of a step, whatever the stride
        V complete[n];
        each<n>([&](auto j) __attribute__((always_inline)) { complete[j] = sum[j]; });
        store_sums(complete, count, a.shift ? load(a.shift + c) : V(0), a.activation, out, to,
                   out_pixel);
        to += rows.out_row;
      }
      if constexpr (stride == 2)
        if (rows.begin <= r + 1 && r + 1 < rows.end) {
          add_row<taps, stride, 1>(w, live, row, weight + c, first, rows.count, sum);
          row += w.source_row;
        }
      each<(met - 1) * n>([&](auto i) __attribute__((always_inline)) { sum[i] = sum[i + n]; });
      each<n>([&](auto j) __attribute__((always_inline)) { sum[(met - 1) * n + j] = V(0); });
    }
  }

  /// The same with any weights, of one column.
  static void store_column(const DepthwiseWindow& w, const DepthwiseRows& rows, const float* weight,
                           const DepthwiseStore& a, Sums<T> out, int64_t out_pixel, int64_t output,
                           int64_t c) {
    const Positions live(w, output, 1);
    const T* source = static_cast<const T*>(w.source) + live.first * w.pixel + c;
    for (int64_t i = 0; i < rows.count; ++i) {
      V sum[1] = {V(0)};
      for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t t = 0; t < w.taps; ++t)
          if (rows.begin <= i * w.stride + r && i * w.stride + r < rows.end && live.has(t))
            sum[0] = fused(load(source + (i * w.stride + r) * w.source_row + t * w.pixel),
                           load(weight + r * w.weight_row + t * w.weight_tap + c), sum[0]);
      store_sums(sum, 1, a.shift ? load(a.shift + c) : V(0), a.activation, out,
                 output * out_pixel + i * rows.out_row + c, out_pixel);
    }
  }

  static bool are_finite(const DepthwiseWindow& w, const float* weight) {
    bool finite = true;
    for (int64_t c = 0; c < w.channels; c += lanes) {
      const float* of_row = weight + at_most(c, w.channels - lanes);
      V zeros(0);
      for (int64_t r = 0; r < w.rows; ++r, of_row += w.weight_row)
        for (int64_t t = 0; t < w.taps; ++t)
          zeros = fused(load(of_row + t * w.weight_tap), V(0), zeros);
      finite = finite && xsimd::all(zeros == V(0));
    }
    return finite;
  }

  template <int taps, int stride>
  static void store(const DepthwiseWindow& w, const DepthwiseRows& rows, const float* weight,
                    const DepthwiseStore& a, Sums<T> out, int64_t out_pixel) {
    const bool finite = are_finite(w, weight);
    const int64_t n = finite ? columns(taps, stride) : 1;
    for (int64_t output = 0; output < w.outputs; output += n)
      for (int64_t begin = 0; begin < w.channels; begin += lanes) {
        const int64_t c = at_most(begin, w.channels - lanes);
        if (finite) slide<taps, stride>(w, rows, weight, a, out, out_pixel, output, c);
        else store_column(w, rows, weight, a, out, out_pixel, output, c);
      }
  }

  static void store_rows(const DepthwiseWindow& w, const DepthwiseRows& rows, const float* weight,
                         const DepthwiseStore& a, void* out, int64_t out_pixel) {
    const Sums<T> to{.to = out};
    const auto with = [&](auto taps, auto stride) {
      if constexpr (takes(taps(), stride()))
        if (w.taps == taps() && w.stride == stride())
          store<taps(), stride()>(w, rows, weight, a, to, out_pixel);
    };
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    with(std::integral_constant<int, 3>{}, One{});
    with(std::integral_constant<int, 3>{}, Two{});
    with(std::integral_constant<int, 5>{}, One{});
    with(std::integral_constant<int, 5>{}, Two{});
  }
};

}  // namespace
}  // namespace quern::kernels
