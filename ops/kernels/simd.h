// Vectors over arrays of bf16, f16, f32 and f64, as long as the unit's instruction set has them:
// xsimd, and what it lacks for bf16 and f16. Those are widened to f32 on load and rounded to
// nearest even (a NaN stays one) on store.
// Included by files with ISA flags, so all of it has internal linkage.
#pragma once
#include <cstdint>
#include <type_traits>
#include <utility>
#include <xsimd/xsimd.hpp>

#include "quern/ops/kernels/unit.h"
#include "quern/tensor/bfloat16.h"
#include "quern/tensor/float16.h"

namespace quern::kernels {
namespace {

/// The type that elements of type T are computed in: f32 for bf16 and f16.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// A vector of T's elements, widened: of the best instruction set that the unit is compiled for.
template <class T>
using Vec = xsimd::batch<Wide<T>>;

template <class T>
inline constexpr int64_t kLanes = static_cast<int64_t>(Vec<T>::size);

/// The compiler's vector of `lanes` elements, which is what xsimd's registers are made of.
template <class E, int64_t lanes>
struct Native {
  typedef E type __attribute__((vector_size(sizeof(E) * lanes)));
};
using Halves = Native<uint16_t, kLanes<float>>::type;
using Words = Native<int32_t, kLanes<float>>::type;

// The compiler expands these conversions for any ISA, but GCC 12 in more steps than x86 needs.
// (maskz: its unmasked intrinsics warn of their own undefined vectors.)
inline Words widen(Halves v) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, Words);
#endif
}
inline Halves narrow(Words v) {
#ifdef __AVX512F__
  return (Halves)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)v);
#else
  return __builtin_convertvector(v, Halves);
#endif
}

/// Of T bf16 or f16.
template <class T>
Vec<T> widened(Halves v) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return (typename Vec<T>::register_type)(widen(v) << 16);
  } else {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtph_ps(0xffff, (__m256i)v);
#elif defined(__AVX2__)
    return _mm256_cvtph_ps((__m128i)v);
#elif defined(__ARM_NEON)
    return vcvt_f32_f16((float16x4_t)v);
#else
    alignas(64) float wide[kLanes<float>];
    for (int i = 0; i < kLanes<float>; ++i) wide[i] = float16::from_bits(v[i]);
    return Vec<T>::load_aligned(wide);
#endif
  }
}

// Rounded once, which xsimd's are not in Neon: those of f32 are refined estimates, and no numbers
// at infinity.
template <class F>
F quotient(F a, F b) {
  return typename F::register_type(a.data / b.data);
}
/// a·b + c, rounded once where the CPU has an instruction for it. That of xsimd 8 is a product and
/// a sum in AVX-512, which compilers contract or not, as a loop has it: results would depend on
/// where operands come from.
template <class F>
F fused(F a, F b, F c) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<F, Vec<float>>) return _mm512_fmadd_ps(a.data, b.data, c.data);
  else return _mm512_fmadd_pd(a.data, b.data, c.data);
#else
  return xsimd::fma(a, b, c);
#endif
}
/// c - a·b, likewise (xsimd's fnma is a product and a sum in Neon).
template <class F>
F fused_minus(F a, F b, F c) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<F, Vec<float>>) return _mm512_fnmadd_ps(a.data, b.data, c.data);
  else return _mm512_fnmadd_pd(a.data, b.data, c.data);
#else
  return xsimd::fma(-a, b, c);
#endif
}
/// (v - center)·scale + shift, what a batch norm makes of v. The sign of it decides what a relu
/// passes on, and backward what its gradient does: all that ask, epilogue_avx512.h too, compute it
/// so, to the last bit.
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

inline Vec<double> load(const double* p) { return Vec<double>::load_unaligned(p); }
inline Vec<float> load(const float* p) { return Vec<float>::load_unaligned(p); }
/// Of bf16 or f16.
template <class T>
Vec<T> load(const T* p) {
  static_assert(sizeof(T) == 2);
  Halves half;
  __builtin_memcpy(&half, p, sizeof(half));
  return widened<T>(half);
}

/// Rounded to nearest even.
inline Halves to_bf16(Vec<bfloat16> v) {
#if defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh(v.data);  // subnormals become zero
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (Halves)vcvt_bf16_f32(v.data);
#else
  using Bits = Native<uint32_t, kLanes<float>>::type;
  const Bits bits = (Bits)v.data, high = bits >> 16;
  const Bits rounded = (bits + 0x7fff + (high & 1)) >> 16, quiet = high | 0x40;
  const Bits nan = (Bits)((Words)(bits & 0x7fffffff) > 0x7f800000);
  return narrow((Words)((nan & quiet) | (~nan & rounded)));
#endif
}

inline Halves to_f16(Vec<float16> v) {
#if defined(__AVX512F__)
  return (Halves)_mm512_maskz_cvtps_ph(0xffff, v.data, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (Halves)_mm256_cvtps_ph(v.data, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__ARM_NEON)
  return (Halves)vcvt_f16_f32(v.data);
#else
  Halves half;
  for (int i = 0; i < kLanes<float>; ++i) half[i] = float16(v.get(static_cast<size_t>(i))).bits;
  return half;
#endif
}
/// To T, bf16 or f16.
template <class T>
Halves narrowed(Vec<T> v) {
  if constexpr (std::is_same_v<T, bfloat16>) return to_bf16(v);
  else return to_f16(v);
}

inline void store(double* p, Vec<double> v) { v.store_unaligned(p); }
inline void store(float* p, Vec<float> v) { v.store_unaligned(p); }
/// Of bf16 or f16.
template <class T>
void store(T* p, Vec<T> v) {
  static_assert(sizeof(T) == 2);
  const Halves half = narrowed<T>(v);
  __builtin_memcpy(static_cast<void*>(p), &half, sizeof(half));
}

/// Is there an instruction for stream()?
#ifdef __AVX512F__
inline constexpr bool kStreams = true;
#else
inline constexpr bool kStreams = false;
#endif
/// A non-temporal store, past the caches, where there is an instruction for it; p is aligned to
/// what is stored. Other threads may read it when the parallel_for is over.
template <class T>
void stream(T* p, Vec<T> v) {
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 2)
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)narrowed<T>(v));
  if constexpr (std::is_same_v<T, float>) return _mm512_stream_ps(p, v.data);
#endif
  store(p, v);
}

/// Prefetches what lies a page further on: hardware prefetchers stop at page ends and start anew
/// behind them. Pays in loops of few instructions a line, not where other work hides it (SGD).
inline void fetch_page_ahead(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + 4096);
}
/// The same of what will be overwritten: a store that misses waits for the line, and stores wait
/// for each other.
inline void own_page_ahead(void* p) { __builtin_prefetch(static_cast<char*>(p) + 4096, 1); }

// Conditions as bits, that of lane i being bit i: vectors as AVX-512 keeps them.
template <class T>
using LaneWords =
    typename Native<std::conditional_t<sizeof(Wide<T>) == 8, int64_t, int32_t>, kLanes<T>>::type;
template <class T>
LaneWords<T> bit_of_lane() {
  LaneWords<T> bits;
  for (int i = 0; i < kLanes<T>; ++i) bits[i] = 1 << i;
  return bits;
}
template <class T>
uint16_t to_bits(typename Vec<T>::batch_bool_type condition) {
#if defined(__AVX512F__)
  return condition.data;
#elif defined(__AVX2__)
  if constexpr (sizeof(Wide<T>) == 8)
    return static_cast<uint16_t>(_mm256_movemask_pd(condition.data));
  else return static_cast<uint16_t>(_mm256_movemask_ps(condition.data));
#else
  const auto bits = (LaneWords<T>)condition.data & bit_of_lane<T>();
  uint16_t all = 0;
  for (int i = 0; i < kLanes<T>; ++i) all |= static_cast<uint16_t>(bits[i]);
  return all;
#endif
}
/// v in the lanes whose bits are set, 0 in the others.
template <class T>
Vec<T> where_bits(uint16_t bits, Vec<T> v) {
#ifdef __AVX512F__
  using Condition = typename Vec<T>::batch_bool_type;
  using Mask = typename Condition::register_type;
  return xsimd::select(Condition(static_cast<Mask>(bits)), v, Vec<T>(0));
#else
  const auto kept = (bit_of_lane<T>() & bits) != 0;
  return (typename Vec<T>::register_type)((LaneWords<T>)v.data & kept);
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
inline void widen_one(const float16* p, float* to) {
#ifdef __AVX2__
  uint16_t half;
  __builtin_memcpy(&half, p, sizeof(half));
  *to = _cvtsh_ss(half);
#else
  *to = *p;
#endif
}

#ifdef __AVX512F__
/// The first n lanes.
template <class T>
auto lanes_before(int64_t n) {
  return static_cast<typename Vec<T>::batch_bool_type::register_type>((1u << n) - 1);
}
#endif

/// The first n lanes from p, `fill` in the others; reads nothing beyond p[n-1].
template <class T>
Vec<T> load_n(const T* p, int64_t n, Vec<T> fill = Vec<T>(0)) {
#ifdef __AVX512F__
  const auto some = lanes_before<T>(n);
  if constexpr (std::is_same_v<T, double>) return _mm512_mask_loadu_pd(fill.data, some, p);
  else if constexpr (std::is_same_v<T, float>) return _mm512_mask_loadu_ps(fill.data, some, p);
  else {
    const Vec<T> v = widened<T>((Halves)_mm256_maskz_loadu_epi16(some, p));
    return _mm512_mask_mov_ps(fill.data, some, v.data);
  }
#else
  alignas(64) Wide<T> padded[kLanes<T>];
  store(padded, fill);
  if (n > kLanes<T>) __builtin_unreachable();
  for (int64_t i = 0; i < n; ++i) widen_one(p + i, padded + i);
  return load(static_cast<const Wide<T>*>(padded));
#endif
}

/// The first n lanes to p; writes nothing beyond p[n-1].
template <class T>
void store_n(T* p, Vec<T> v, int64_t n) {
#ifdef __AVX512F__
  const auto some = lanes_before<T>(n);
  if constexpr (std::is_same_v<T, double>) _mm512_mask_storeu_pd(p, some, v.data);
  else if constexpr (std::is_same_v<T, float>) _mm512_mask_storeu_ps(p, some, v.data);
  else _mm256_mask_storeu_epi16(p, some, (__m256i)narrowed<T>(v));
#else
  alignas(64) T padded[kLanes<T>];
  store(padded, v);
  for (int64_t i = 0; i < n; ++i)
    __builtin_memcpy(static_cast<void*>(p + i), padded + i, sizeof(T));
#endif
}

// All lanes of a vector, or its first n: the body of a loop is written once for both.
struct AllLanes {
  template <class T>
  Vec<T> load(const T* p, Vec<T> = Vec<T>(0)) const {
    return kernels::load(p);
  }
  template <class T>
  void store(T* p, Vec<T> v) const {
    kernels::store(p, v);
  }
  template <class T>
  void stream(T* p, Vec<T> v) const {
    kernels::stream(p, v);
  }
};
struct FirstLanes {
  int64_t n;
  template <class T>
  Vec<T> load(const T* p, Vec<T> fill = Vec<T>(0)) const {
    return load_n(p, n, fill);
  }
  template <class T>
  void store(T* p, Vec<T> v) const {
    store_n(p, v, n);
  }
  template <class T>
  void stream(T* p, Vec<T> v) const {
    store_n(p, v, n);
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
template <class T, int unrolled = 1, class F>
inline void each_vector(int64_t n, F&& body) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t i = 0;
  for (; i + unrolled * lanes <= n; i += unrolled * lanes)
    unroll<unrolled>([&](int k) { body(i + k * lanes, k, AllLanes{}); });
  if constexpr (unrolled > 1)
    for (; i + lanes <= n; i += lanes) body(i, 0, AllLanes{});
  if (i < n) body(i, 0, FirstLanes{n - i});
}

}  // namespace
}  // namespace quern::kernels
