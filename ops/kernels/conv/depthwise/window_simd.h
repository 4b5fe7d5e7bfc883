// What the depthwise loops share: registers, a window's positions, sums of which vectors overlap.
#pragma once
#include "quern/ops/kernels/conv/depthwise/depthwise_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

/// to += v, but for the lanes before `first`, which another vector has added.
template <class V>
void add_lanes(float* to, V v, int64_t first) {
  if (first == 0) return store(to, load(static_cast<const float*>(to)) + v);
  float all[V::size];
  store(all, v);
  for (int i = static_cast<int>(first); i < static_cast<int>(V::size); ++i) to[i] += all[i];
}

/// The positions [begin, end) of the windows of `outputs` outputs, from `output` on, that are no
/// padding: position p is pixel first + p. Taps are neighbours.
struct Positions {
  int64_t first, begin, end;

  Positions(const DepthwiseWindow& w, int64_t output, int64_t outputs)
      : first(output * w.stride + w.offset), begin(first < 0 ? -first : 0) {
    end = (outputs - 1) * w.stride + w.taps;
    if (end > w.width - first) end = w.width - first;
  }
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
