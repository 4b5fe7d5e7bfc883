// What all pool kernels share: the arithmetic of windows, and the types behind a record's pointers.
// Included by files with ISA flags, so it has internal linkage.
#pragma once
#include "quern/ops/kernels/pool/pool_kernel.h"

namespace quern::kernels {
namespace {

/// The tap of output o's window that reads input i; -1 if none does. i is within the window.
inline int64_t tap_of(const PoolAxis& axis, int64_t i, int64_t o) {
  const int64_t distance = i + axis.padding - o * axis.stride;
  if (axis.dilation == 1) return distance;
  return distance % axis.dilation == 0 ? distance / axis.dilation : -1;
}

/// The functions of a record, from those of Pools by type: T is the elements', and an index int32_t
/// or uint8_t.
template <class Pools, class T>
struct PoolRecord {
  static void max_forward(const Pool& pool, const void* x_, int64_t row, void* y_, void* index) {
    const T* x = static_cast<const T*>(x_);
    T* y = static_cast<T*>(y_);
    if (pool.wide_index) Pools::max_forward(pool, x, row, y, static_cast<int32_t*>(index));
    else Pools::max_forward(pool, x, row, y, static_cast<uint8_t*>(index));
  }
  static void max_backward(const Pool& pool, const void* dy_, const void* index, int64_t row,
                           void* dx_) {
    const T* dy = static_cast<const T*>(dy_);
    T* dx = static_cast<T*>(dx_);
    if (pool.wide_index) Pools::max_backward(pool, dy, static_cast<const int32_t*>(index), row, dx);
    else Pools::max_backward(pool, dy, static_cast<const uint8_t*>(index), row, dx);
  }
  static void avg_forward(const Pool& pool, const void* x, int64_t row, PoolRange channels,
                          void* y) {
    Pools::avg_forward(pool, static_cast<const T*>(x), row, channels, static_cast<T*>(y));
  }
  static void avg_backward(const Pool& pool, const void* dy, int64_t row, void* dx) {
    Pools::avg_backward(pool, static_cast<const T*>(dy), row, static_cast<T*>(dx));
  }

  static constexpr PoolKernel of(const char* name, DType dtype, int64_t min_channels,
                                 int64_t max_channels, int64_t max_taps = INT64_MAX) {
    return {name,     kIsa,        dtype,        min_channels, max_channels,
            max_taps, max_forward, max_backward, avg_forward,  avg_backward};
  }
};

}  // namespace
}  // namespace quern::kernels
