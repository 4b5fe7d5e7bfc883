// What the depthwise loops share: registers, a window's positions, sums and where they go.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/conv/depthwise/depthwise_kernel.h"

namespace quern::kernels {
namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

/// f(0) ... f(n-1), as constants, all in one function: else sums would be in memory.
template <int n, class F>
__attribute__((always_inline)) inline void each(F f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, n>{});
}

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

/// to += v, but for the lanes before `first`, which another vector has added.
template <class V>
void add_lanes(float* to, V v, int64_t first) {
  if (first == 0) return store(to, load(static_cast<const float*>(to)) + v);
  float all[V::size];
  store(all, v);
  for (int i = static_cast<int>(first); i < static_cast<int>(V::size); ++i) to[i] += all[i];
}

/// Outputs whose sums are in registers, beside a row of taps.
constexpr int kOutputs = kRegisters / 4;

/// Where sums go: elements of T, which may bypass the caches, or, `wide`, of f32.
template <class T>
struct Sums {
  void* to;
  bool wide = false, streams = false;

  __attribute__((always_inline)) void put(int64_t i, Vec<T> sum) const {
    if (streams) stream(static_cast<T*>(to) + i, sum);
    else if (wide) store(static_cast<float*>(to) + i, sum);
    else store(static_cast<T*>(to) + i, sum);
  }
  /// Owns the line that element i is put to: a store that misses would wait for it.
  __attribute__((always_inline)) void own(int64_t i) const {
    if (kStreams && streams) return;
    __builtin_prefetch(static_cast<const char*>(to) + i * (wide ? 4 : int64_t{sizeof(T)}), 1);
  }
};

/// put(i, sum i) of the first `count`.
template <class V, int n, class F>
__attribute__((always_inline)) inline void each_sum(const V (&sum)[n], int64_t count, F put) {
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    if (i >= count) break;
    put(i, sum[i]);
  }
}
/// Sums through an activation that does more than clamp: as a call, and from memory, since it takes
/// registers enough to drive the next sums out.
template <class T, class V = Vec<T>>
__attribute__((noinline)) void store_curved(const V* sum, int64_t count, V shift,
                                            Activation activation, Sums<T> out, int64_t to,
                                            int64_t apart) {
  as_constant(activation, [&](auto constant) {
    for (int64_t i = 0; i < count; ++i)
      out.put(to + i * apart, activated_as<T>(sum[i] + shift, constant()));
  });
}
/// The first `count` of a run's sums to elements `to`, to + apart, ...
template <class T, int n, class V = Vec<T>>
__attribute__((always_inline)) inline void store_sums(const V (&sum)[n], int64_t count, V shift,
                                                      Activation activation, Sums<T> out,
                                                      int64_t to, int64_t apart) {
  if (activation == Activation::none)
    return each_sum(
        sum, count, [&](int i, V s) __attribute__((always_inline)) {
          out.put(to + i * apart, s + shift);
        });
  if (!only_clamps(activation)) {
    V in_memory[n];
    each<n>([&](auto i) __attribute__((always_inline)) { in_memory[i] = sum[i]; });
    return store_curved<T>(in_memory, count, shift, activation, out, to, apart);
  }
  const Bounds bounds(activation);
  const V low(bounds.low), high(bounds.high);
  each_sum(
      sum, count, [&](int i, V s) __attribute__((always_inline)) {
        out.put(to + i * apart, bounded(s + shift, low, high));
      });
}

/// store_sums() from channel c on, whose first lanes another vector has, too.
template <class T, int n, class V = Vec<T>>
__attribute__((always_inline)) inline void store_outputs(const V (&sum)[n], int64_t count,
                                                         const DepthwiseStore& a, int64_t c,
                                                         int64_t first_lane, Sums<T> out,
                                                         int64_t to, int64_t apart) {
  for (int64_t i = 0; a.to_next_row > 0 && i < count; ++i) out.own(to + i * apart + a.to_next_row);
  if (!a.first)
    return store_sums(sum, count, a.shift ? load(a.shift + c) : V(0), a.activation, out, to, apart);
  const V pivot = load(a.pivot + c);
  V first(0), second(0);
  each_sum(
      sum, count, [&](int i, V s) __attribute__((always_inline)) {
        const V distance = s - pivot;
        first += distance;
        second = fused(distance, distance, second);
        out.put(to + i * apart, s);
      });
  add_lanes(a.first + c, first, first_lane);
  add_lanes(a.second + c, second, first_lane);
}

/// The positions [begin, end) that `outputs` outputs, from `output` on, meet under taps
/// [tap, tap + taps) of a row and that are no padding: position p is pixel first + p. Taps are
/// neighbours.
struct Positions {
  int64_t first, begin, end;

  Positions(const DepthwiseWindow& w, int64_t output, int64_t outputs, int64_t tap, int64_t taps)
      : first(output * w.stride + w.offset + tap), begin(first < 0 ? -first : 0) {
    end = at_most((outputs - 1) * w.stride + taps, w.width - first);
  }
  Positions(const DepthwiseWindow& w, int64_t output, int64_t outputs)
      : Positions(w, output, outputs, 0, w.taps) {}
  bool has(int64_t position) const { return begin <= position && position < end; }
};

/// What the next row of outputs reads at these positions; `row` is at position 0.
template <class T>
void prefetch_next(const DepthwiseWindow& w, const Positions& live, const T* row) {
  for (int64_t p = live.begin; p < live.end; ++p)
    __builtin_prefetch(row + p * w.pixel + w.to_next_row);
}

}  // namespace
}  // namespace quern::kernels
