// Rounding by chance on vectors, once an instruction set, to the bits of the reference. Philox has
// two products of 32 bits by 32 a round, of which x86 and Neon have vectors in lanes of 64: a lane
// is a counter, its upper half whatever the products leave there,
// since they read the lower one alone.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/round/by_chance_kernel.h"
#include "quern/ops/kernels/simd.h"

namespace quern::kernels {
namespace {

constexpr int64_t kCounters = kLanes<double>;
using Counters = Native<uint64_t, kCounters>::type;
using Bits = Native<uint32_t, kLanes<float>>::type;
using Floats = Native<float, kLanes<float>>::type;

/// Of the lower halves.
inline Counters product(Counters a, Counters b) {
#if defined(__AVX512F__)
  return (Counters)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Counters)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Counters)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  return (Counters)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

/// The pairs 2i of a and b, or 2i+1, one after the other.
template <int odd>
Counters every_other(Counters a, Counters b) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (i / 2 * 2 + odd + i % 2 * int{kCounters})...);
  }
  (std::make_integer_sequence<int, int{kCounters}>());
}

/// Even lanes have the first half of the counters, odd ones the second: they are in order once
/// every other one is taken.
constexpr Counters order_of_lanes() {
  return []<int... i>(std::integer_sequence<int, i...>) {
    return Counters{(i / 2 + i % 2 * (kCounters / 2))...};
  }
  (std::make_integer_sequence<int, int{kCounters}>());
}
constexpr Counters kOrder = order_of_lanes();

/// The words of the counters from `block` on, in the order of elements.
inline void draw(uint64_t block, uint64_t stream, uint64_t seed, Bits (&words)[2]) {
  const Counters counter = Counters{} + block + kOrder;
  Counters c0 = counter, c1 = counter >> 32, c2 = Counters{} + stream, c3 = c2 >> 32;
  Counters k0 = Counters{} + seed, k1 = k0 >> 32;
  for (int round = 0; round < 10; ++round) {
    const Counters a = product(c0, Counters{} + 0xD2511F53),
                   b = product(c2, Counters{} + 0xCD9E8D57);
    c0 = (b >> 32) ^ c1 ^ k0;
    c1 = b;
    c2 = (a >> 32) ^ c3 ^ k1;
    c3 = a;
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  const Counters first = (c0 & 0xffffffff) | c1 << 32, second = (c2 & 0xffffffff) | c3 << 32;
  words[0] = (Bits)every_other<0>(first, second);
  words[1] = (Bits)every_other<1>(first, second);
}

/// a where the lane of `condition` is set, else b.
inline Bits choose(Words condition, Bits a, Bits b) {
  return ((Bits)condition & a) | (~(Bits)condition & b);
}

template <class T>
Halves rounded(Bits bits, Bits word) {
  const Bits size = bits & 0x7fffffff;
  if constexpr (std::is_same_v<T, bfloat16>) {
    const Words finite = (Words)size < 0x7f800000;
    const Words nan = (Words)size > 0x7f800000;
    return narrow((Words)((bits + ((Bits)finite & word >> 16)) >> 16 | ((Bits)nan & 0x40)));
  } else {
    const Bits sign = bits >> 16 & 0x8000;
    Bits half = (size + (word >> 19) - (112u << 23)) >> 13;
    const Words large = (Words)size >= 0x47800000, small = (Words)size < 0x38800000;
    half = choose(
        large, 0x7c00 | ((Bits)((Words)size > 0x7f800000) & (0x200 | (size >> 13 & 0x3ff))), half);
    // Numbers far from 1, and zeros. What is left of the 2^-24s is 32 bits, compared as two of 16.
    const Floats steps = (Floats)size * 0x1p24f;
    const Words whole = __builtin_convertvector((Floats)((Bits)steps & (Bits)small), Words);
    const Floats left = (steps - __builtin_convertvector(whole, Floats)) * 0x1p16f;
    const Words upper = __builtin_convertvector((Floats)((Bits)left & (Bits)small), Words);
    const Floats lower = (left - __builtin_convertvector(upper, Floats)) * 0x1p16f;
    const Words high = (Words)(word >> 16), low = (Words)(word & 0xffff);
    const Words below =
        (high < upper) | ((high == upper) & (__builtin_convertvector(low, Floats) < lower));
    half = choose(small, (Bits)(whole - below), half);
    return narrow((Words)(sign | half));
  }
}

template <class T>
void by_chance(const ByChance& p) {
  constexpr int64_t lanes = kLanes<float>, step = 2 * lanes;
  static_assert(step == 4 * kCounters);
  const auto run = [&](const float* from, T* to, int64_t block) {
    Bits words[2];
    draw(static_cast<uint64_t>(block), p.stream, p.seed, words);
    for (int i = 0; i < 2; ++i) {
      Bits bits;
      __builtin_memcpy(&bits, from + i * lanes, sizeof bits);
      const Halves half = rounded<T>(bits, words[i]);
      __builtin_memcpy(static_cast<void*>(to + i * lanes), &half, sizeof half);
    }
  };
  T* const to = static_cast<T*>(p.to);
  int64_t skipped = p.first % 4;  // words of a counter whose other ones the elements before had
  for (int64_t at = 0; at < p.n;) {
    const int64_t n = p.n - at < step - skipped ? p.n - at : step - skipped;
    const int64_t block = (p.first + at) / 4;
    if (n == step) {
      run(p.from + at, to + at, block);
    } else {
      float from[step] = {};
      T part[step];
      __builtin_memcpy(from + skipped, p.from + at, static_cast<size_t>(n) * sizeof(float));
      run(from, part, block);
      __builtin_memcpy(static_cast<void*>(to + at), part + skipped,
                       static_cast<size_t>(n) * sizeof(T));
    }
    at += n, skipped = 0;
  }
}

constexpr ByChanceKernel kByChance[] = {
    {QUERN_NAMED("by_chance_bf16"), kIsa, DType::bf16, by_chance<bfloat16>},
    {QUERN_NAMED("by_chance_f16"), kIsa, DType::f16, by_chance<float16>},
};

}  // namespace

QUERN_KERNELS(ByChanceKernel, by_chance, kByChance)

}  // namespace quern::kernels
