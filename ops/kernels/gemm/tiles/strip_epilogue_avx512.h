// What a strip's tiles become, 32 columns of a row at a time: whole cache lines of bf16.
#pragma once
#include <immintrin.h>

#include "quern/ops/kernels/activation_simd.h"
#include "quern/ops/kernels/gemm/strip.h"

namespace quern::kernels {
namespace {

/// The columns 0..15 and 16..31 that there are.
struct Columns32 {
  __m512 lo, hi;
};
struct Mask32 {
  __mmask16 lo, hi;

  explicit Mask32(int64_t n) {
    const uint32_t all = n >= 32 ? ~0u : (1u << n) - 1;
    lo = static_cast<__mmask16>(all), hi = static_cast<__mmask16>(all >> 16);
  }
  Columns32 load(const void* array, int64_t column) const {
    const float* p = static_cast<const float*>(array) + column;
    return {_mm512_maskz_loadu_ps(lo, p), _mm512_maskz_loadu_ps(hi, p + 16)};
  }
  void store(void* array, int64_t column, Columns32 v) const {
    float* p = static_cast<float*>(array) + column;
    _mm512_mask_storeu_ps(p, lo, v.lo);
    _mm512_mask_storeu_ps(p + 16, hi, v.hi);
  }
};

/// Rows of f32, and of bf16.
struct WideItems {
  using Item = float;
  static Columns32 load(const Mask32& mask, const float* p) { return mask.load(p, 0); }
  static void store(const Mask32& mask, float* p, Columns32 v) { mask.store(p, 0, v); }
};
struct Bf16Items {
  using Item = uint16_t;
  static Columns32 load(const Mask32& mask, const uint16_t* p) {
    const auto widened = [](__mmask16 m, const uint16_t* half) {
      const __m512i items = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, half));
      return _mm512_castsi512_ps(_mm512_slli_epi32(items, 16));
    };
    return {widened(mask.lo, p), widened(mask.hi, p + 16)};
  }
  static void store(const Mask32& mask, uint16_t* p, Columns32 v) {
    const auto both = static_cast<__mmask32>(mask.lo | static_cast<uint32_t>(mask.hi) << 16);
    _mm512_mask_storeu_epi16(p, both, (__m512i)_mm512_cvtne2ps_pbh(v.hi, v.lo));
  }
};

template <class F>
__attribute__((always_inline)) inline Columns32 each(Columns32 a, F f) {
  return {f(a.lo), f(a.hi)};
}
template <class F>
__attribute__((always_inline)) inline Columns32 each(Columns32 a, Columns32 b, F f) {
  return {f(a.lo, b.lo), f(a.hi, b.hi)};
}
inline Columns32 operator+(Columns32 a, Columns32 b) {
  return {_mm512_add_ps(a.lo, b.lo), _mm512_add_ps(a.hi, b.hi)};
}
inline Columns32 operator-(Columns32 a, Columns32 b) {
  return {_mm512_sub_ps(a.lo, b.lo), _mm512_sub_ps(a.hi, b.hi)};
}
inline Columns32 fused(Columns32 a, Columns32 b, Columns32 c) {
  return {_mm512_fmadd_ps(a.lo, b.lo, c.lo), _mm512_fmadd_ps(a.hi, b.hi, c.hi)};
}

template <class Items>
struct AvxFinish {
  using Item = typename Items::Item;
  using Kind = Epilogue::Kind;

  template <Kind kKind>
  static void run(const SummedTile& tile, int64_t begin, int64_t end) {
    const Epilogue& f = *tile.epilogue;
    const Mask32 mask(tile.n);
    const int64_t first_item = tile.tile->out + tile.column;
    Item* const out = static_cast<Item*>(f.out) + first_item;
    const Item* const residual =
        f.residual ? static_cast<const Item*>(f.residual) + first_item : nullptr;
    const Item* const xs = f.x ? static_cast<const Item*>(f.x) + first_item : nullptr;
    const auto each_row = [&](auto value) __attribute__((always_inline)) {
      for (int64_t i = begin; i < end; ++i) {
        const StripRow row = tile.tile->rows[i];
        const float* sums = tile.sums + row.row * 32;
        Items::store(mask, out + row.to,
                     value(Columns32{_mm512_load_ps(sums), _mm512_load_ps(sums + 16)}, row.to));
      }
    };
    if constexpr (kKind == Kind::store) {
      const auto same = [](Columns32 v, int64_t) __attribute__((always_inline)) { return v; };
      each_row(same);
    } else if constexpr (kKind == Kind::activate) {
      const Columns32 shift = mask.load(f.map.shift, tile.column);
      if (!only_clamps(f.activation)) {
        const auto curved = [&](Columns32 v, int64_t to) {
          v = v + shift;
          if (residual) v = v + Items::load(mask, residual + to);
          return each(v,
                      [&](__m512 x) -> __m512 { return activated(Vec<float>(x), f.activation); });
        };
        return each_row(curved);
      }
      const __m512 least = _mm512_set1_ps(f.activation == Activation::none ? -__builtin_inff() : 0);
      const __m512 most = _mm512_set1_ps(f.activation == Activation::relu6 ? 6 : __builtin_inff());
      const auto clamped = [&](__m512 v) __attribute__((always_inline)) {  // NaN passes
        return _mm512_min_ps(most, _mm512_max_ps(least, v));
      };
      const auto activated = [&](Columns32 v, int64_t to) __attribute__((always_inline)) {
        v = v + shift;
        if (residual) v = v + Items::load(mask, residual + to);
        return each(v, clamped);
      };
      each_row(activated);
    } else {
      Columns32 first = mask.load(f.first, tile.column), second = mask.load(f.second, tile.column);
      const Columns32 center = mask.load(f.map.center, tile.column);
      if constexpr (kKind == Kind::moments) {
        const auto summed = [&](Columns32 v, int64_t) __attribute__((always_inline)) {
          const Columns32 distance = v - center;
          first = first + distance;
          second = fused(distance, distance, second);
          return v;
        };
        each_row(summed);
      } else {
        const Columns32 scale = mask.load(f.map.scale, tile.column),
                        shift = mask.load(f.map.shift, tile.column);
        // Which relu has none of, and no activation no bound: nothing is beyond a NaN.
        const auto bound = [](bool has, float at) {
          return _mm512_set1_ps(has ? at : __builtin_nanf(""));
        };
        const __m512 low = bound(f.map.activation != Activation::none, 0),
                     high = bound(f.map.activation == Activation::relu6, 6);
        const auto bent = [&](__m512 dz, __m512 z) -> __m512 {
          return through(Vec<float>(dz), Vec<float>(z), f.map.activation);
        };
        const auto cut = [&](__m512 dz, __m512 z) __attribute__((always_inline)) {
          const __mmask16 passed = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(z, low, _CMP_NLE_UQ),
                                                           z, high, _CMP_NGE_UQ);
          return _mm512_maskz_mov_ps(passed, dz);
        };
        const bool curved = !only_clamps(f.map.activation);
        const auto masked = [&](Columns32 v, int64_t to) __attribute__((always_inline)) {
          if (residual) v = v + Items::load(mask, residual + to);
          const Columns32 distance = Items::load(mask, xs + to) - center;
          const Columns32 z = fused(distance, scale, shift);
          v = curved ? each(v, z, bent) : each(v, z, cut);
          first = first + v;
          second = fused(v, distance, second);
          return v;
        };
        each_row(masked);
      }
      mask.store(f.first, tile.column, first);
      mask.store(f.second, tile.column, second);
    }
  }

  static CompleteOutputs* of(Kind kind) {
    switch (kind) {
      case Kind::store: return run<Kind::store>;
      case Kind::activate: return run<Kind::activate>;
      case Kind::moments: return run<Kind::moments>;
      case Kind::gradient: return run<Kind::gradient>;
    }
    return nullptr;
  }
};

struct Avx512StripEpilogue {
  static CompleteOutputs* of(const Epilogue& f) {
    return f.wide ? AvxFinish<WideItems>::of(f.kind) : AvxFinish<Bf16Items>::of(f.kind);
  }
  static void prefetch(const void* line) {
    _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1);
  }
};

}  // namespace
}  // namespace quern::kernels
