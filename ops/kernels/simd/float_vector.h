// What the vector types of portable.h, avx2.h and avx512.h share: a handful of floats to compute
// in, loaded from and stored to f32 or bf16 (a uint16_t here: the upper half of a float).
#pragma once
#include <cstdint>
#include <xsimd/xsimd.hpp>

#include "quern/tensor/types.h"

namespace quern::kernels {
namespace {

template <class Arch>
struct FloatVector {
  using F = xsimd::batch<float, Arch>;
  using I = xsimd::batch<int32_t, Arch>;
  static constexpr int64_t lanes = F::size;

  static F load(const float* p) { return F::load_unaligned(p); }
  static void store(float* p, F v) { v.store_unaligned(p); }

  /// Rounds to bf16: nearest, ties to even; a NaN stays a quiet NaN. The low halves of the result
  /// are the bits; the upper ones copies of their sign, so that saturating packs may narrow them.
  static I round_to_bf16(F v) {
    const I u = xsimd::bitwise_cast<I>(v);
    const I rounded = (u + I(0x7fff) + ((u >> 16) & I(1))) >> 16;
    const I nan = (u >> 16) | I(0x40);
    return xsimd::select((u & I(0x7fffffff)) > I(0x7f800000), nan, rounded);
  }
};

/// The first n < V::lanes elements, the other lanes `fill`; reads nothing beyond them.
template <class V, class T>
typename V::F load_first(const T* p, int64_t n, T fill = T{}) {
  T padded[V::lanes];
  for (int64_t i = 0; i < V::lanes; ++i) padded[i] = i < n ? p[i] : fill;
  return V::load(padded);
}

/// Stores the first n < V::lanes lanes.
template <class V, class T>
void store_first(T* p, typename V::F v, int64_t n) {
  T padded[V::lanes];
  V::store(padded, v);
  for (int64_t i = 0; i < n; ++i) p[i] = padded[i];
}

}  // namespace
}  // namespace quern::kernels
