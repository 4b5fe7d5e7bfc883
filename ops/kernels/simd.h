// Vectors over arrays of bf16, f32 and f64, once an instruction set: xsimd, and what it lacks for
// bf16. bf16 is widened to f32 on load and rounded to nearest even (a NaN stays one) on store.
// Included by files with ISA flags, so all of it has internal linkage.
#pragma once
#include <cstdint>
#include <type_traits>
#include <utility>
#include <xsimd/xsimd.hpp>

#include "quern/tensor/bfloat16.h"

namespace quern::kernels {
namespace {

/// The type that elements of type T are computed in: f32 for bf16.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

/// A vector of Arch of T's elements, widened.
template <class T, class Arch>
using Vec = xsimd::batch<Wide<T>, Arch>;

template <class T, class Arch>
inline constexpr int64_t kLanes = static_cast<int64_t>(Vec<T, Arch>::size);

/// The compiler's vector of `lanes` elements, which is what xsimd's registers are made of.
template <class E, int64_t lanes>
struct Native {
  typedef E type __attribute__((vector_size(sizeof(E) * lanes)));
};
template <class Arch>
using Halves = typename Native<uint16_t, kLanes<float, Arch>>::type;
template <class Arch>
using Words = typename Native<int32_t, kLanes<float, Arch>>::type;

// The compiler expands these conversions for any ISA, but GCC 12 in more steps than x86 needs.
// (maskz: its unmasked intrinsics warn of their own undefined vectors.)
template <class Arch>
Words<Arch> widen(Halves<Arch> v) {
#ifdef __AVX512F__
  if constexpr (kLanes<float, Arch> == 16)
    return (Words<Arch>)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);
#endif
#ifdef __AVX2__
  if constexpr (kLanes<float, Arch> == 8) return (Words<Arch>)_mm256_cvtepu16_epi32((__m128i)v);
#endif
  return __builtin_convertvector(v, Words<Arch>);
}
template <class Arch>
Halves<Arch> narrow(Words<Arch> v) {
#ifdef __AVX512F__
  if constexpr (kLanes<float, Arch> == 16)
    return (Halves<Arch>)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)v);
#endif
  return __builtin_convertvector(v, Halves<Arch>);
}

template <class Arch>
Vec<bfloat16, Arch> widened(Halves<Arch> v) {
  return (typename Vec<bfloat16, Arch>::register_type)(widen<Arch>(v) << 16);
}

// Rounded once, which xsimd's are not in Neon: those of f32 are refined estimates, and no numbers at infinity.
template <class F>
F quotient(F a, F b) {
  return typename F::register_type(a.data / b.data);
}
/// a·b + c, rounded once where the CPU has an instruction for it. That of xsimd 8 is a product and a sum in AVX-512,
/// which compilers contract or not, as a loop has it: results would depend on where operands come from.
template <class F>
F fused(F a, F b, F c) {
#ifdef __AVX512F__
  if constexpr (sizeof(F) == 64 && std::is_same_v<typename F::value_type, float>)
    return _mm512_fmadd_ps(a.data, b.data, c.data);
  else if constexpr (sizeof(F) == 64) return _mm512_fmadd_pd(a.data, b.data, c.data);
#endif
  return xsimd::fma(a, b, c);
}
/// c - a·b, likewise.
template <class F>
F fused_minus(F a, F b, F c) {
#ifdef __AVX512F__
  if constexpr (sizeof(F) == 64 && std::is_same_v<typename F::value_type, float>)
    return _mm512_fnmadd_ps(a.data, b.data, c.data);
  else if constexpr (sizeof(F) == 64) return _mm512_fnmadd_pd(a.data, b.data, c.data);
#endif
  return xsimd::fnma(a, b, c);
}
/// (v - center)·scale + shift, what a batch norm makes of v. The sign of it decides what a relu passes on, and
/// backward what its gradient does: all that ask, finish_avx512.h too, compute it so, to the last bit.
template <class V>
V normalised(V v, V center, V scale, V shift) {
  return fused(v - center, scale, shift);
}
template <class F>
F square_root(F x) {
#ifdef __ARM_NEON
  if constexpr (std::is_same_v<typename F::value_type, float>) return vsqrtq_f32(x.data);
#endif
  return xsimd::sqrt(x);
}

template <class Arch>
Vec<double, Arch> load(const double* p) {
  return Vec<double, Arch>::load_unaligned(p);
}
template <class Arch>
Vec<float, Arch> load(const float* p) {
  return Vec<float, Arch>::load_unaligned(p);
}
template <class Arch>
Vec<bfloat16, Arch> load(const bfloat16* p) {
  Halves<Arch> half;
  __builtin_memcpy(&half, p, sizeof(half));
  return widened<Arch>(half);
}

template <class Arch>
void store(double* p, Vec<double, Arch> v) {
  v.store_unaligned(p);
}
template <class Arch>
void store(float* p, Vec<float, Arch> v) {
  v.store_unaligned(p);
}
/// Rounded to nearest even.
template <class Arch>
Halves<Arch> to_bf16(Vec<bfloat16, Arch> v) {
#ifdef __AVX512BF16__
  if constexpr (kLanes<float, Arch> == 16)
    return (Halves<Arch>)_mm512_cvtneps_pbh(v.data);  // subnormals become zero
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  if constexpr (kLanes<float, Arch> == 4) return (Halves<Arch>)vcvt_bf16_f32(v.data);
#endif
  using Bits = typename Native<uint32_t, kLanes<float, Arch>>::type;
  const Bits bits = (Bits)v.data, high = bits >> 16;
  const Bits rounded = (bits + 0x7fff + (high & 1)) >> 16, quiet = high | 0x40;
  const Bits nan = (Bits)((Words<Arch>)(bits & 0x7fffffff) > 0x7f800000);
  return narrow<Arch>((Words<Arch>)((nan & quiet) | (~nan & rounded)));
}
template <class Arch>
void store(bfloat16* p, Vec<bfloat16, Arch> v) {
  const Halves<Arch> half = to_bf16<Arch>(v);
  __builtin_memcpy(static_cast<void*>(p), &half, sizeof(half));
}

/// Past the caches where there is an instruction for it, p being aligned to what is stored. Other threads
/// may read it after store_fence().
template <class Arch, class T>
void stream(T* p, Vec<T, Arch> v) {
#ifdef __AVX512F__
  if constexpr (kLanes<float, Arch> == 16) {
    if constexpr (std::is_same_v<T, bfloat16>)
      return _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)to_bf16<Arch>(v));
    if constexpr (std::is_same_v<T, float>) return _mm512_stream_ps(p, v.data);
  }
#endif
  store<Arch>(p, v);
}
inline void store_fence() {
#ifdef __AVX512F__
  _mm_sfence();
#endif
}

/// What lies a page further on: the CPU's own prefetchers stop where pages end, and start anew there. Pays in
/// backward passes, whose tensors are partly in the third-level cache (ResNet-50 in bf16, Zen 5: joins take
/// 0.94 of the time, 0.85 at 14×14, batch norms 0.9), not where all comes from memory (forward, SGD).
inline void fetch_page_ahead(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + 4096);
}

// Conditions as bits, that of lane i being bit i: vectors as AVX-512 keeps them.
template <class T, class Arch>
using LaneWords = typename Native<std::conditional_t<sizeof(Wide<T>) == 8, int64_t, int32_t>,
                                  kLanes<T, Arch>>::type;
template <class T, class Arch>
LaneWords<T, Arch> bit_of_lane() {
  LaneWords<T, Arch> bits;
  for (int i = 0; i < kLanes<T, Arch>; ++i) bits[i] = 1 << i;
  return bits;
}
template <class T, class Arch>
uint16_t to_bits(typename Vec<T, Arch>::batch_bool_type condition) {
#if defined(__AVX512F__)
  return condition.data;
#elif defined(__AVX2__)
  if constexpr (sizeof(Wide<T>) == 8)
    return static_cast<uint16_t>(_mm256_movemask_pd(condition.data));
  else return static_cast<uint16_t>(_mm256_movemask_ps(condition.data));
#else
  const auto bits = (LaneWords<T, Arch>)condition.data & bit_of_lane<T, Arch>();
  uint16_t all = 0;
  for (int i = 0; i < kLanes<T, Arch>; ++i) all |= static_cast<uint16_t>(bits[i]);
  return all;
#endif
}
/// v in the lanes whose bits are set, 0 in the others.
template <class T, class Arch>
Vec<T, Arch> where_bits(uint16_t bits, Vec<T, Arch> v) {
#ifdef __AVX512F__
  using Condition = typename Vec<T, Arch>::batch_bool_type;
  using Mask = typename Condition::register_type;
  return xsimd::select(Condition(static_cast<Mask>(bits)), v, Vec<T, Arch>(0));
#else
  const auto kept = (bit_of_lane<T, Arch>() & bits) != 0;
  return (typename Vec<T, Arch>::register_type)((LaneWords<T, Arch>)v.data & kept);
#endif
}

inline void widen_one(const double* p, double* to) { *to = *p; }
inline void widen_one(const float* p, float* to) { *to = *p; }
inline void widen_one(const bfloat16* p, float* to) {
  uint16_t half;
  __builtin_memcpy(&half, p, sizeof(half));
  const uint32_t word = uint32_t{half} << 16;
  __builtin_memcpy(to, &word, sizeof(word));
}

/// The first n lanes from p, `fill` in the others; reads nothing beyond p[n-1].
template <class Arch, class T>
Vec<T, Arch> load_n(const T* p, int64_t n, Vec<T, Arch> fill = Vec<T, Arch>(0)) {
  alignas(64) Wide<T> padded[kLanes<T, Arch>];
  store<Arch>(padded, fill);
  if (n > kLanes<T, Arch>) __builtin_unreachable();
  for (int64_t i = 0; i < n; ++i) widen_one(p + i, padded + i);
  return load<Arch>(static_cast<const Wide<T>*>(padded));
}

/// The first n lanes to p; writes nothing beyond p[n-1].
template <class Arch, class T>
void store_n(T* p, Vec<T, Arch> v, int64_t n) {
  alignas(64) T padded[kLanes<T, Arch>];
  store<Arch>(padded, v);
  for (int64_t i = 0; i < n; ++i)
    __builtin_memcpy(static_cast<void*>(p + i), padded + i, sizeof(T));
}

// All lanes of a vector, or its first n: the body of a loop is written once for both.
template <class Arch>
struct AllLanes {
  template <class T>
  Vec<T, Arch> load(const T* p, Vec<T, Arch> = Vec<T, Arch>(0)) const {
    return kernels::load<Arch>(p);
  }
  template <class T>
  void store(T* p, Vec<T, Arch> v) const {
    kernels::store<Arch>(p, v);
  }
  template <class T>
  void stream(T* p, Vec<T, Arch> v) const {
    kernels::stream<Arch>(p, v);
  }
};
template <class Arch>
struct FirstLanes {
  int64_t n;
  template <class T>
  Vec<T, Arch> load(const T* p, Vec<T, Arch> fill = Vec<T, Arch>(0)) const {
    return load_n<Arch>(p, n, fill);
  }
  template <class T>
  void store(T* p, Vec<T, Arch> v) const {
    store_n<Arch>(p, v, n);
  }
  template <class T>
  void stream(T* p, Vec<T, Arch> v) const {
    store_n<Arch>(p, v, n);
  }
};

/// f(0) ... f(n-1), so that arrays indexed by the argument stay in registers.
template <int n, class F>
inline void unroll(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (f(i), ...); }
  (std::make_integer_sequence<int, n>{});
}

/// Walks 0..n in vectors of T: body(i, k, lanes) handles element i and those after it in its lanes;
/// k < unrolled, a constant once inlined, is the accumulator to use.
template <class T, class Arch, int unrolled = 1, class F>
inline void each_vector(int64_t n, F&& body) {
  constexpr int64_t lanes = kLanes<T, Arch>;
  int64_t i = 0;
  for (; i + unrolled * lanes <= n; i += unrolled * lanes)
    unroll<unrolled>([&](int k) { body(i + k * lanes, k, AllLanes<Arch>{}); });
  if constexpr (unrolled > 1)
    for (; i + lanes <= n; i += lanes) body(i, 0, AllLanes<Arch>{});
  if (i < n) body(i, 0, FirstLanes<Arch>{n - i});
}

}  // namespace
}  // namespace quern::kernels
