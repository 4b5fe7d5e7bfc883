// The join kernels as their formulas read: the oracle, and the last choice.
#include <algorithm>

#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/norm/join_kernel.h"
#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// T: the elements' type. P: the parameters', in which it computes. i is an element's index, c its
/// channel.
template <class T, class P>
struct Reference {
  static P element(const void* p, int64_t i) { return static_cast<P>(static_cast<const T*>(p)[i]); }
  static P parameter(const void* p, int64_t c, P otherwise) {
    return p ? static_cast<const P*>(p)[c] : otherwise;
  }
  static P distance(const JoinSide& side, int64_t i, int64_t c) {
    return element(side.v, i) - parameter(side.map.center, c, 0);
  }
  static P normalised(const JoinSide& side, int64_t i, int64_t c) {
    if (!side.v) return 0;
    return distance(side, i, c) * parameter(side.map.scale, c, 1) + parameter(side.map.shift, c, 0);
  }
  static P sum_of(const JoinSide& branch, const JoinSide& shortcut, int64_t i, int64_t c) {
    return normalised(branch, i, c) + normalised(shortcut, i, c);
  }
  template <class Word>
  static Word* word(Word* mask, const BatchNormBlock& block, int64_t i, int64_t c) {
    return mask + i / block.stride * mask_words(block.stride) + c / 16;
  }
  static P differentiated(const BatchNormBlock& block, const JoinSide& branch,
                          const JoinGradient& gradient, int64_t i, int64_t c) {
    P dout = element(gradient.dout, i);
    if (gradient.scale)
      dout = dout * parameter(gradient.scale, c, 1) + parameter(gradient.shift, c, 0);
    if (!gradient.mask) return through(dout, normalised(branch, i, c), branch.map.activation);
    return *word(gradient.mask, block, i, c) >> c % 16 & 1 ? dout : 0;
  }
  static double deviation(const JoinSide& side, int64_t i, int64_t c) {
    return static_cast<double>(element(side.v, i)) - parameter(side.map.center, c, 0);
  }
  static void differentiate(const JoinSide& side, P dz, int64_t i, int64_t c) {
    if (!side.dv) return;
    const P bv = side.a ? parameter(side.b, c, 0) * distance(side, i, c) : 0;
    static_cast<T*>(side.dv)[i] =
        static_cast<T>(parameter(side.a, c, 1) * dz + (bv + parameter(side.c, c, 0)));
  }

  template <class F>
  static void each(const BatchNormBlock& block, F f) {
    for (int64_t r = 0; r < block.rows; ++r)
      for (int64_t c = 0; c < block.channels; ++c) f(r * block.stride + c, c);
  }

  static void forward(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                      void* out, MaskWord* mask, double* sums, bool /*streams*/) {
    if (sums) std::fill_n(sums, block.channels, 0);
    each(block, [&](int64_t i, int64_t c) {
      const P v = sum_of(branch, shortcut, i, c), y = activated(v, branch.map.activation);
      static_cast<T*>(out)[i] = static_cast<T>(y);
      if (sums) sums[c] += y;
      if (!mask) return;
      MaskWord& bits = *word(mask, block, i, c);
      if (c % 16 == 0) bits = 0;
      if (through<P>(1, v, branch.map.activation) != 0)
        bits = static_cast<MaskWord>(bits | 1 << c % 16);
    });
  }

  static void reduce(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                     const JoinGradient& gradient, double* const* sums) {
    for (int k = 0; k < (shortcut.map.center ? 3 : 2); ++k)
      for (int64_t c = 0; c < block.channels; ++c) sums[k][c] = 0;
    const bool no_clamp = !gradient.mask && !only_clamps(branch.map.activation);
    const bool leaves_dz = branch.dv && (no_clamp || gradient.scale);
    each(block, [&](int64_t i, int64_t c) {
      const double dz = differentiated(block, branch, gradient, i, c);
      if (leaves_dz) static_cast<T*>(branch.dv)[i] = static_cast<T>(static_cast<P>(dz));
      sums[0][c] += dz;
      sums[1][c] += dz * deviation(branch, i, c);
      if (shortcut.map.center) sums[2][c] += dz * deviation(shortcut, i, c);
    });
  }

  static void apply(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                    const JoinGradient& gradient, bool /*streams*/) {
    each(block, [&](int64_t i, int64_t c) {
      const P dz = differentiated(block, branch, gradient, i, c);
      differentiate(branch, dz, i, c);
      differentiate(shortcut, dz, i, c);
    });
  }

  static constexpr JoinKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, forward, reduce, apply};
  }
};

constexpr JoinKernel kRecords[] = {
    Reference<float, float>::record(QUERN_NAMED("join_f32"), DType::f32),
    Reference<bfloat16, float>::record(QUERN_NAMED("join_bf16"), DType::bf16),
    Reference<double, double>::record(QUERN_NAMED("join_f64"), DType::f64),
};

}  // namespace

QUERN_KERNELS(JoinKernel, join, kRecords)

}  // namespace quern::kernels
