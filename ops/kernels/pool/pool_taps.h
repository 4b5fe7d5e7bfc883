// The arithmetic of windows that all pool kernels share. Included by files with ISA flags, so it
// has internal linkage.
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

}  // namespace
}  // namespace quern::kernels
