// The join kernels on vectors of xsimd, once an instruction set. They are bound by memory
// bandwidth, which hides what a branch a vector costs.
#pragma once
#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/norm/join_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// i is an element's index, c its channel, `part` a vector's lanes or the first of them.
template <class T>
struct Join {
  using V = Vec<T>;
  using P = Wide<T>;

  template <class Part>
  static V elements(const void* p, int64_t i, Part part) {
    return part.load(static_cast<const T*>(p) + i);
  }
  template <class Part>
  static V parameters(const void* p, int64_t c, Part part) {
    return part.load(static_cast<const P*>(p) + c);
  }
  template <class Part>
  static V value_of(const JoinSide& side, int64_t i, int64_t c, Part part) {
    const V v = elements(side.v, i, part);
    if (!side.map.scale) return v;
    return normalised(v, parameters(side.map.center, c, part), parameters(side.map.scale, c, part),
                      parameters(side.map.shift, c, part));
  }
  template <class Part>
  static V sum_of(const JoinSide& branch, const JoinSide& shortcut, int64_t i, int64_t c,
                  Part part) {
    const V v = value_of(branch, i, c, part);
    return shortcut.v ? v + value_of(shortcut, i, c, part) : v;
  }
  template <class Word>
  static Word* row_of(Word* mask, const BatchNormBlock& block, int64_t row) {
    return mask ? mask + row * mask_words(block.stride) : nullptr;
  }
  /// Where channel c's lanes begin in its word.
  static int bit(int64_t c) { return kLanes<T> == 16 ? 0 : static_cast<int>(c % 16); }
  static void put_bits(MaskWord* row, int64_t c, xsimd::batch_bool<P> condition) {
    const int bits = to_bits<T>(condition) << bit(c);
    row[c / 16] = static_cast<MaskWord>(bit(c) == 0 ? bits : row[c / 16] | bits);
  }
  /// dz; `bits`: of the row, or null
  template <class Part>
  static V differentiated(const JoinSide& branch, const JoinSide& shortcut, const void* dout,
                          const MaskWord* bits, int64_t i, int64_t c, Part part) {
    for (const void* p : {branch.v, shortcut.v, dout})
      if (p) fetch_page_ahead(static_cast<const T*>(p) + i);
    if (!bits)
      return branch.map.activation == Activation::none
                 ? elements(dout, i, part)
                 : through(elements(dout, i, part), value_of(branch, i, c, part),
                           branch.map.activation);
    return where_bits<T>(static_cast<uint16_t>(bits[c / 16] >> bit(c)), elements(dout, i, part));
  }
  /// sum += dz·(v - center)
  template <class Part>
  static void add_deviation(const JoinSide& side, V dz, int64_t i, int64_t c, Part part, P* sum) {
    const V d = elements(side.v, i, part) - parameters(side.map.center, c, part);
    store(sum, fused(dz, d, load(sum)));
  }
  template <class Part>
  static void differentiate(const JoinSide& side, V dz, int64_t i, int64_t c, Part part,
                            bool streams) {
    if (!side.dv) return;
    if (side.a) {
      const V bv = normalised(elements(side.v, i, part), parameters(side.map.center, c, part),
                              parameters(side.b, c, part), parameters(side.c, c, part));
      dz = fused(parameters(side.a, c, part), dz, bv);
    }
    put(static_cast<T*>(side.dv) + i, dz, part, streams);
  }
  template <class Part>
  static void put(T* p, V v, Part part, bool streams) {
    if (streams) part.stream(p, v);
    else part.store(p, v);
  }

  static void forward(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                      void* out, MaskWord* mask, bool streams) {
    for (int64_t r = 0; r < block.rows; ++r)
      each_vector<T>(block.channels, [&](int64_t c, int, auto part) {
        const int64_t i = r * block.stride + c;
        const V v = sum_of(branch, shortcut, i, c, part);
        put(static_cast<T*>(out) + i, activated(v, branch.map.activation), part, streams);
        if (mask)  // NaN passes
          put_bits(row_of(mask, block, r), c, through(V(1), v, branch.map.activation) != V(0));
      });
    if (streams) store_fence();
  }

  static void reduce(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                     const void* dout, const MaskWord* mask, double* const* sums) {
    // Row by row, the sums of a row's channels in L1: a sequential read reaches more of the
    // memory's bandwidth than stripes of columns narrow enough to keep their sums in registers.
    alignas(64) P all[3][kJoinChannels] = {};
    for (int64_t r = 0; r < block.rows; ++r)
      each_vector<T>(block.channels, [&](int64_t c, int, auto part) {
        const int64_t i = r * block.stride + c;
        const V dz = differentiated(branch, shortcut, dout, row_of(mask, block, r), i, c, part);
        store(all[0] + c, load(all[0] + c) + dz);
        add_deviation(branch, dz, i, c, part, all[1] + c);
        if (shortcut.map.center) add_deviation(shortcut, dz, i, c, part, all[2] + c);
      });
    for (int k = 0; k < (shortcut.map.center ? 3 : 2); ++k)
      for (int64_t c = 0; c < block.channels; ++c) sums[k][c] = all[k][c];
  }

  template <bool streams>
  static void apply_as(const BatchNormBlock& block, const JoinSide& branch,
                       const JoinSide& shortcut, const void* dout, const MaskWord* mask) {
    for (int64_t r = 0; r < block.rows; ++r)
      each_vector<T>(block.channels, [&](int64_t c, int, auto part) {
        const int64_t i = r * block.stride + c;
        const V dz = differentiated(branch, shortcut, dout, row_of(mask, block, r), i, c, part);
        differentiate(branch, dz, i, c, part, streams && branch.dv != dout);
        differentiate(shortcut, dz, i, c, part, streams && shortcut.dv != dout);
      });
    if (streams) store_fence();
  }
  static void apply(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                    const void* dout, const MaskWord* mask, bool streams) {
    if (streams) apply_as<true>(block, branch, shortcut, dout, mask);
    else apply_as<false>(block, branch, shortcut, dout, mask);
  }

  static constexpr JoinKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, forward, reduce, apply};
  }
};

constexpr JoinKernel kRecords[] = {
    Join<float>::record(QUERN_NAMED("join_f32"), DType::f32),
    Join<bfloat16>::record(QUERN_NAMED("join_bf16"), DType::bf16),
    Join<double>::record(QUERN_NAMED("join_f64"), DType::f64),
};

}  // namespace

QUERN_KERNELS(JoinKernel, join, kRecords)

}  // namespace quern::kernels
