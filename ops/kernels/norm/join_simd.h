// The join kernels on vectors of xsimd, once an instruction set. Memory bounds them if their loops
// are tight: what is the same for a whole call is in a type, not a branch a vector, and lines are
// asked for a page ahead.
#pragma once
#include <algorithm>

#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/norm/join_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

/// What a side brings, or gets.
enum class Kind { nothing, plain, mapped };

/// Calls f with the constant that `kind` is.
template <class F>
void as_constant(Kind kind, F f) {
  if (kind == Kind::nothing) f(std::integral_constant<Kind, Kind::nothing>{});
  else if (kind == Kind::plain) f(std::integral_constant<Kind, Kind::plain>{});
  else f(std::integral_constant<Kind, Kind::mapped>{});
}

/// i is an element's index, r and c its row and channel, `part` a vector's lanes or the first of
/// them.
template <class T>
struct Join {
  using V = Vec<T>;
  using P = Wide<T>;

  static const T* elements(const void* p) { return static_cast<const T*>(p); }
  static const P* parameters(const void* p) { return static_cast<const P*>(p); }

  /// A side forward.
  template <Kind kind>
  struct Side {
    explicit Side(const JoinSide& s)
        : v(elements(s.v)),
          center(parameters(s.map.center)),
          scale(parameters(s.map.scale)),
          shift(parameters(s.map.shift)) {}
    template <class Part>
    V operator()(int64_t i, int64_t c, Part part) const {
      if constexpr (kind == Kind::plain) return part.load(v + i);
      else
        return normalised(part.load(v + i), part.load(center + c), part.load(scale + c),
                          part.load(shift + c));
    }
    const T* v;
    const P *center, *scale, *shift;
  };
  using Branch = Side<Kind::mapped>;

  struct Relu {
    V operator()(V v) const { return activated(v, Activation::relu); }
    auto passes(V v) const { return !(v <= V(0)); }  // NaN does
  };
  /// Any activation that only clamps. A bound that it lacks is NaN, which nothing exceeds.
  struct Clamp {
    explicit Clamp(Activation a)
        : low(a == Activation::none ? __builtin_nanf("") : 0),
          high(a == Activation::relu6 ? 6 : __builtin_nanf("")) {}
    V operator()(V v) const { return clamped(v, low, high); }
    auto passes(V v) const { return !((v <= low) | (v >= high)); }
    V low, high;
  };
  template <Activation activation>
  struct Activate {
    V operator()(V v) const { return activated(v, activation); }
  };

  // Gradients of the sum; `alone`: the branch's, as there is no shortcut.
  struct Passed {
    static constexpr bool alone = false;
    template <class Part>
    V operator()(int64_t, int64_t i, int64_t, Part part) const {
      return part.load(dout + i);
    }
    const T* dout;
  };
  struct Masked {
    static constexpr bool alone = false;
    template <class Part>
    V operator()(int64_t r, int64_t i, int64_t c, Part part) const {
      const int bits = mask[r * words + c / 16] >> bit(c);
      return where_bits<T>(static_cast<uint16_t>(bits), part.load(dout + i));
    }
    const T* dout;
    const MaskWord* mask;
    int64_t words;
  };
  template <Activation activation>
  struct Sloped {
    static constexpr bool alone = true;
    template <class Part>
    V operator()(int64_t, int64_t i, int64_t c, Part part) const {
      return through(part.load(dout + i), branch(i, c, part), activation);
    }
    const T* dout;
    Branch branch;
  };
  template <Activation activation>
  struct Gated {
    static constexpr bool alone = true;
    template <class Part>
    V operator()(int64_t, int64_t i, int64_t c, Part part) const {
      const V d = fused(part.load(dout + i), part.load(scale + c), part.load(shift + c));
      return through(d, branch(i, c, part), activation);
    }
    const T* dout;
    const P *scale, *shift;
    Branch branch;
  };
  template <class F>
  static void as_gradient(const BatchNormBlock& block, const JoinSide& branch,
                          const JoinGradient& gradient, F f) {
    const Activation a = branch.map.activation;
    const T* dout = elements(gradient.dout);
    if (gradient.mask) f(Masked{dout, gradient.mask, mask_words(block.stride)});
    else if (a == Activation::none) f(Passed{dout});
    else
      as_constant(a, [&](auto k) {
        if constexpr (k() != Activation::none) f(Sloped<k()>{dout, Branch(branch)});
      });
  }

  /// Where channel c's lanes begin in its word.
  static int bit(int64_t c) { return kLanes<T> == 16 ? 0 : static_cast<int>(c % 16); }
  static void put_bits(MaskWord* row, int64_t c, xsimd::batch_bool<P> condition) {
    const int bits = to_bits<T>(condition) << bit(c);
    row[c / 16] = static_cast<MaskWord>(bit(c) == 0 ? bits : row[c / 16] | bits);
  }
  template <class Part>
  static void put(T* p, V v, Part part, bool streams) {
    if (streams) return part.stream(p, v);
    own_page_ahead(p);
    part.store(p, v);
  }

  /// body(r, i, c, part) on every vector.
  template <class F>
  static void each(const BatchNormBlock& block, F body) {
    const auto [rows, channels, stride] = block;  // which stores may not change
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = r * stride;
      each_vector<T>(channels, [&](int64_t c, int, auto part) { body(r, row + c, c, part); });
    }
  }

  template <bool masks, Kind kind, class F>
  static void forward_as(const BatchNormBlock& block, const JoinSide& branch_,
                         const JoinSide& shortcut_, F activate, void* out_, MaskWord* mask,
                         bool streams) {
    const Branch branch(branch_);
    const Side<kind> shortcut(shortcut_);
    T* out = static_cast<T*>(out_);
    const int64_t words = mask_words(block.stride);
    each(block, [=](int64_t r, int64_t i, int64_t c, auto part) {
      fetch_page_ahead(branch.v + i);
      if constexpr (kind != Kind::nothing) fetch_page_ahead(shortcut.v + i);
      V v = branch(i, c, part);
      if constexpr (kind != Kind::nothing) v += shortcut(i, c, part);
      put(out + i, activate(v), part, streams);
      if constexpr (masks) put_bits(mask + r * words, c, activate.passes(v));
    });
  }
  template <Activation activation>
  static void sum_as(const BatchNormBlock& block, const JoinSide& branch_, void* out_, double* sums,
                     bool streams) {
    const Branch branch(branch_);
    T* out = static_cast<T*>(out_);
    alignas(64) P sum[kJoinChannels] = {};  // as reduce_as() keeps them
    each(block, [&](int64_t, int64_t i, int64_t c, auto part) {
      fetch_page_ahead(branch.v + i);
      const V v = activated(branch(i, c, part), activation);
      put(out + i, v, part, streams);
      store(sum + c, load(sum + c) + v);
    });
    std::copy_n(sum, block.channels, sums);
  }
  static void forward(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                      void* out, MaskWord* mask, double* sums, bool streams) {
    if (sums)
      return as_constant(branch.map.activation,
                         [&](auto a) { sum_as<a()>(block, branch, out, sums, streams); });
    const Kind kind = !shortcut.v ? Kind::nothing : shortcut.map.scale ? Kind::mapped : Kind::plain;
    as_constant(kind, [&](auto k) {
      const auto clamp = [&](auto activate) {
        if (mask) forward_as<true, k()>(block, branch, shortcut, activate, out, mask, streams);
        else forward_as<false, k()>(block, branch, shortcut, activate, out, mask, streams);
      };
      const Activation a = branch.map.activation;
      if (a == Activation::relu) clamp(Relu{});
      else if (only_clamps(a)) clamp(Clamp(a));
      else
        as_constant(a, [&](auto smooth) {
          if constexpr (!only_clamps(smooth()))
            forward_as<false, k()>(block, branch, shortcut, Activate<smooth()>{}, out, mask,
                                   streams);
        });
    });
  }

  template <bool both, class Gradient>
  static void reduce_as(const BatchNormBlock& block, const JoinSide& branch_,
                        const JoinSide& shortcut_, Gradient gradient, double* const* sums) {
    const Branch branch(branch_), shortcut(shortcut_);
    // Row by row, the sums of a row's channels in L1: a sequential read reaches more of the
    // memory's bandwidth than stripes of columns narrow enough to keep their sums in registers.
    alignas(64) P all[3][kJoinChannels] = {};
    T* const dv = static_cast<T*>(branch_.dv);
    const auto add = [](V v, P* sum) { store(sum, load(sum) + v); };
    const auto add_deviation = [](const Branch& side, V dz, int64_t i, int64_t c, auto part,
                                  P* sum) {
      const V d = part.load(side.v + i) - part.load(side.center + c);
      store(sum, fused(dz, d, load(sum)));
    };
    each(block, [&](int64_t r, int64_t i, int64_t c, auto part) {
      fetch_page_ahead(gradient.dout + i);
      fetch_page_ahead(branch.v + i);
      if constexpr (both) fetch_page_ahead(shortcut.v + i);
      const V dz = gradient(r, i, c, part);
      if constexpr (Gradient::alone)
        if (dv) put(dv + i, dz, part, false);
      add(dz, all[0] + c);
      add_deviation(branch, dz, i, c, part, all[1] + c);
      if constexpr (both) add_deviation(shortcut, dz, i, c, part, all[2] + c);
    });
    for (int k = 0; k < (both ? 3 : 2); ++k)
      for (int64_t c = 0; c < block.channels; ++c) sums[k][c] = all[k][c];
  }
  static void reduce(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                     const JoinGradient& gradient_, double* const* sums) {
    if (gradient_.scale)
      return as_constant(branch.map.activation, [&](auto a) {
        const Gated<a()> gradient{elements(gradient_.dout), parameters(gradient_.scale),
                                  parameters(gradient_.shift), Branch(branch)};
        reduce_as<false>(block, branch, shortcut, gradient, sums);
      });
    as_gradient(block, branch, gradient_, [&](auto gradient) {
      constexpr bool may_meet = !gradient.alone;
      if (shortcut.map.center) reduce_as<may_meet>(block, branch, shortcut, gradient, sums);
      else reduce_as<false>(block, branch, shortcut, gradient, sums);
    });
  }

  /// A side backward.
  template <Kind kind>
  struct Differentiated {
    Differentiated(const JoinSide& s, bool streams_)
        : v(elements(s.v)),
          center(parameters(s.map.center)),
          a(parameters(s.a)),
          b(parameters(s.b)),
          c_(parameters(s.c)),
          dv(static_cast<T*>(s.dv)),
          streams(streams_) {}
    template <class Part>
    void put(V dz, int64_t i, int64_t c, Part part) const {
      if constexpr (kind == Kind::mapped) {
        fetch_page_ahead(v + i);
        const V bv = normalised(part.load(v + i), part.load(center + c), part.load(b + c),
                                part.load(c_ + c));
        dz = fused(part.load(a + c), dz, bv);
      }
      if constexpr (kind != Kind::nothing) Join::put(dv + i, dz, part, streams);
    }
    const T* v;
    const P *center, *a, *b, *c_;
    T* dv;
    bool streams;
  };
  template <Kind kind, class Gradient>
  static void apply_as(const BatchNormBlock& block, const JoinSide& branch_,
                       const JoinSide& shortcut_, Gradient gradient, bool streams) {
    const auto streams_to = [&](const void* dv) { return streams && dv != gradient.dout; };
    const Differentiated<Kind::mapped> branch(branch_, streams_to(branch_.dv));
    const Differentiated<kind> shortcut(shortcut_, streams_to(shortcut_.dv));
    each(block, [=](int64_t r, int64_t i, int64_t c, auto part) {
      fetch_page_ahead(gradient.dout + i);
      const V dz = gradient(r, i, c, part);
      branch.put(dz, i, c, part);
      shortcut.put(dz, i, c, part);
    });
  }
  static void apply(const BatchNormBlock& block, const JoinSide& branch, const JoinSide& shortcut,
                    const JoinGradient& gradient_, bool streams) {
    const Kind kind = !shortcut.dv ? Kind::nothing : shortcut.a ? Kind::mapped : Kind::plain;
    as_gradient(block, branch, gradient_, [&](auto gradient) {
      as_constant(kind, [&](auto k) {
        constexpr Kind met = gradient.alone ? Kind::nothing : k();
        apply_as<met>(block, branch, shortcut, gradient, streams);
      });
    });
  }

  static constexpr JoinKernel record(const char* name, DType dtype) {
    return {name, kIsa, dtype, forward, reduce, apply};
  }
};

constexpr JoinKernel kRecords[] = {
    Join<bfloat16>::record(QUERN_NAMED("join_bf16"), DType::bf16),
#ifndef __AVX512BF16__  // it only rounds
    Join<float>::record(QUERN_NAMED("join_f32"), DType::f32),
    Join<double>::record(QUERN_NAMED("join_f64"), DType::f64),
#endif
};

}  // namespace

QUERN_KERNELS(JoinKernel, join, kRecords)

}  // namespace quern::kernels
