// The join kernels on vectors of xsimd, once an instruction set. They are bound by memory, which hides
// what a branch a vector costs.
#pragma once
#include "quern/ops/kernels/norm/columns_simd.h"
#include "quern/ops/kernels/norm/join_kernel.h"

namespace quern::kernels {
namespace {

/// i is an element's index, c its channel, `part` a vector's lanes or the first of them.
template <class T, class Arch>
struct Join {
  using V = Vec<T, Arch>;
  using P = Wide<T>;

  template <class Part>
  static V elements(const void* p, int64_t i, Part part) {
    return part.load(static_cast<const T*>(p) + i);
  }
  template <class Part>
  static V parameters(const void* p, int64_t c, Part part) {
    return part.load(static_cast<const P*>(p) + c);
  }
  static V zero_where(xsimd::batch_bool<P, Arch> condition, V v) {
    return xsimd::select(condition, V(0), v);
  }

  template <class Part>
  static V normalised(const JoinSide& side, int64_t i, int64_t c, Part part) {
    const V v = elements(side.v, i, part);
    if (!side.scale) return v;
    return xsimd::fma(v, parameters(side.scale, c, part), parameters(side.shift, c, part));
  }
  template <class Part>
  static V masked(const JoinSide& branch, const void* out, const void* dout, int64_t i, int64_t c,
                  Part part) {
    const V passed = out ? elements(out, i, part) : normalised(branch, i, c, part);
    return zero_where(passed <= V(0), elements(dout, i, part));
  }
  template <class Part>
  static void differentiate(const JoinSide& side, V dz, int64_t i, int64_t c, Part part) {
    if (!side.dv) return;
    if (side.a) {
      const V bv = xsimd::fma(parameters(side.b, c, part), elements(side.v, i, part),
                              parameters(side.c, c, part));
      dz = xsimd::fma(parameters(side.a, c, part), dz, bv);
    }
    part.store(static_cast<T*>(side.dv) + i, dz);
  }

  static void forward(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                      void* out) {
    for (int64_t r = 0; r < block.rows; ++r)
      each_vector<T, Arch>(block.channels, [&](int64_t c, int, auto part) {
        const int64_t i = r * block.stride + c;
        V v = normalised(branch, i, c, part);
        if (shortcut.v) v += normalised(shortcut, i, c, part);
        part.store(static_cast<T*>(out) + i, zero_where(v <= V(0), v));  // NaN passes
      });
  }

  static void reduce(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                     const void* out, const void* dout, double* const* sums) {
    each_columns<T, Arch>(block.channels, [&](int64_t first, auto count, auto part) {
      constexpr int64_t lanes = kLanes<T, Arch>;
      V mean[count], shortcut_mean[count], sum[3][count];
      unroll<count>([&](int v) {
        mean[v] = parameters(branch.mean, first + v * lanes, part);
        shortcut_mean[v] =
            shortcut.mean ? parameters(shortcut.mean, first + v * lanes, part) : V(0);
        sum[0][v] = sum[1][v] = sum[2][v] = V(0);
      });
      for (int64_t r = 0; r < block.rows; ++r)
        unroll<count>([&](int v) {
          const int64_t c = first + v * lanes, i = r * block.stride + c;
          const V dz = masked(branch, out, dout, i, c, part);
          sum[0][v] += dz;
          sum[1][v] = xsimd::fma(dz, elements(branch.v, i, part) - mean[v], sum[1][v]);
          if (shortcut.mean)
            sum[2][v] = xsimd::fma(dz, elements(shortcut.v, i, part) - shortcut_mean[v], sum[2][v]);
        });
      for (int k = 0; k < (shortcut.mean ? 3 : 2); ++k)
        store_columns<T, Arch>(sum[k], block.channels - first, sums[k] + first);
    });
  }

  static void apply(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                    const void* out, const void* dout) {
    for (int64_t r = 0; r < block.rows; ++r)
      each_vector<T, Arch>(block.channels, [&](int64_t c, int, auto part) {
        const int64_t i = r * block.stride + c;
        const V dz = masked(branch, out, dout, i, c, part);
        differentiate(branch, dz, i, c, part);
        differentiate(shortcut, dz, i, c, part);
      });
  }

  static constexpr JoinKernel record(const char* name, Isa isa, DType dtype) {
    return {name, isa, dtype, forward, reduce, apply};
  }
};

}  // namespace
}  // namespace quern::kernels
