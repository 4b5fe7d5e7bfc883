// What the AVX-512 tiles share: 14×32 accumulators, 28 of the 32 registers (two more hold a row of
// B and one an element of A for all columns), and what completes sums while they are there: to
// store them and load them again for this is a large part of the time of a tile that adds up few
// channels. Row by row, since four registers are free besides the sums; each row that is stored
// frees two more.
#pragma once
#include <immintrin.h>

#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 14, kNr = 32;
constexpr int kNarrowMr = 16;  // one register a row

/// The columns of a tile that there are; others are neither read nor written. (Under a mask, loads
/// and stores take no longer.)
struct InColumns {
  __mmask16 lo, hi;  // 0..15, 16..31

  explicit InColumns(int64_t n) {
    const uint32_t all = n >= kNr ? ~0u : (1u << n) - 1;
    lo = static_cast<__mmask16>(all), hi = static_cast<__mmask16>(all >> 16);
  }
};

// Words of a and b in turn, of each four the first two; the last two.
inline __m512 interleave_lo(__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); }
inline __m512 interleave_hi(__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); }
inline __m512i interleave_lo(__m512i a, __m512i b) { return _mm512_unpacklo_epi32(a, b); }
inline __m512i interleave_hi(__m512i a, __m512i b) { return _mm512_unpackhi_epi32(a, b); }
constexpr __mmask16 kEvens = 0x5555;  // lanes of a
/// a and b again.
inline __m512 evens(__m512 lo, __m512 hi) { return _mm512_shuffle_ps(lo, hi, 0x88); }
inline __m512 odds(__m512 lo, __m512 hi) { return _mm512_shuffle_ps(lo, hi, 0xdd); }

template <int kRows>
struct Accumulators {
  __m512 lo[kRows], hi[kRows];  // columns 0..15, 16..31

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) lo[r] = hi[r] = _mm512_setzero_ps();
  }

  /// Up to 16 columns, of each of which two halves of the sum lie side by side, the first two of
  /// four columns in lo, the others in hi: lo becomes the sums.
  __attribute__((always_inline)) void join_halves() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) lo[r] = _mm512_add_ps(evens(lo[r], hi[r]), odds(lo[r], hi[r]));
  }

  /// C from a row on; kHalf: of up to 16 columns.
  template <bool kHalf>
  __attribute__((always_inline)) void add(const GemmTile& tile, int64_t first_row) {
    const InColumns in(tile.n);
    const float* c = row_of_c(tile, first_row);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      lo[r] = _mm512_add_ps(lo[r], _mm512_maskz_loadu_ps(in.lo, c));
      if constexpr (!kHalf) hi[r] = _mm512_add_ps(hi[r], _mm512_maskz_loadu_ps(in.hi, c + 16));
    }
  }

  template <bool kHalf = false>
  __attribute__((always_inline)) void store(const GemmTile& tile, int64_t first_row = 0) {
    if (tile.accumulate) add<kHalf>(tile, first_row);
    const InColumns in(tile.n);
    float* c = row_of_c(tile, first_row);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      _mm512_mask_storeu_ps(c, in.lo, lo[r]);
      if constexpr (!kHalf) _mm512_mask_storeu_ps(c + 16, in.hi, hi[r]);
    }
  }

 private:
  __attribute__((always_inline)) static float* row_of_c(const GemmTile& tile, int64_t row) {
    return static_cast<float*>(tile.c) + row * tile.ldc;
  }
};

/// 32 columns, 0..15 and 16..31.
struct Columns {
  __m512 lo, hi;
};
__attribute__((always_inline)) inline Columns operator+(Columns a, Columns b) {
  return {_mm512_add_ps(a.lo, b.lo), _mm512_add_ps(a.hi, b.hi)};
}
__attribute__((always_inline)) inline Columns operator-(Columns a, Columns b) {
  return {_mm512_sub_ps(a.lo, b.lo), _mm512_sub_ps(a.hi, b.hi)};
}
/// a·b + c.
__attribute__((always_inline)) inline Columns fma(Columns a, Columns b, Columns c) {
  return {_mm512_fmadd_ps(a.lo, b.lo, c.lo), _mm512_fmadd_ps(a.hi, b.hi, c.hi)};
}

/// Activations that only clamp, and none. NaN passes.
class Clamp {
 public:
  explicit Clamp(Activation activation)
      : least_(_mm512_set1_ps(activation == Activation::none ? -__builtin_inff() : 0)),
        most_(_mm512_set1_ps(activation == Activation::relu6 ? 6 : __builtin_inff())) {}

  __attribute__((always_inline)) Columns operator()(Columns v) const {
    return {clamp(v.lo), clamp(v.hi)};
  }

 private:
  __attribute__((always_inline)) __m512 clamp(__m512 v) const {
    return _mm512_min_ps(most_, _mm512_max_ps(least_, v));
  }
  __m512 least_, most_;
};

/// As activated() computes it.
class Hardswish {
 public:
  __attribute__((always_inline)) Columns operator()(Columns v) const {
    return {hardswish(v.lo), hardswish(v.hi)};
  }

 private:
  __attribute__((always_inline)) static __m512 hardswish(__m512 v) {
    const __m512 moved = _mm512_add_ps(v, _mm512_set1_ps(3));
    const __m512 most = _mm512_set1_ps(6);
    const __m512 bounded = _mm512_min_ps(most, _mm512_max_ps(_mm512_setzero_ps(), moved));
    return _mm512_mul_ps(v, _mm512_mul_ps(bounded, _mm512_set1_ps(1.0f / 6)));
  }
};

/// The gradient through one that clamps: dz, or 0 where z is beyond its bounds. No activation has a
/// lower one, relu no upper one: they are NaN, which nothing is beyond.
class Passed {
 public:
  explicit Passed(Activation activation)
      : low_(bound(activation != Activation::none, 0)),
        high_(bound(activation == Activation::relu6, 6)) {}

  __attribute__((always_inline)) __m512 operator()(__m512 dz, __m512 z) const {
    const __mmask16 above = _mm512_cmp_ps_mask(z, low_, _CMP_NLE_UQ);
    return _mm512_maskz_mov_ps(_mm512_mask_cmp_ps_mask(above, z, high_, _CMP_NGE_UQ), dz);
  }

 private:
  static __m512 bound(bool has, float at) { return _mm512_set1_ps(has ? at : __builtin_nanf("")); }
  __m512 low_, high_;
};

// How 16 columns of a row are loaded and added, and all of them stored.

struct F32Rows {
  using Item = float;
  static __m512 load(__mmask16 in, const float* columns) {
    return _mm512_maskz_loadu_ps(in, columns);
  }
  static __m512 add(__m512 sum, __mmask16 in, const float* columns) {
    return _mm512_add_ps(sum, load(in, columns));
  }
  static void store(InColumns in, float* row, Columns v) {
    store_half(in, row, v.lo);
    _mm512_mask_storeu_ps(row + 16, in.hi, v.hi);
  }
  static void stream(float* row, Columns v) {
    _mm512_stream_ps(row, v.lo);
    _mm512_stream_ps(row + 16, v.hi);
  }
  static void store_half(InColumns in, float* row, __m512 lo) {
    _mm512_mask_storeu_ps(row, in.lo, lo);
  }
};

#ifdef __AVX512BF16__
/// Vectors of bf16 go between functions as integers: clang 16 at -O0 loses a __m512bh on the way.
inline __m512 add_pair_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

struct Bf16Rows {
  using Item = uint16_t;
  static __m512 load(__mmask16 in, const uint16_t* columns) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(widened(in, columns), 16));
  }
  /// As products with 1, which are exact: an instruction less than to widen and add.
  static __m512 add(__m512 sum, __mmask16 in, const uint16_t* columns) {
    return add_pair_products(sum, widened(in, columns), _mm512_set1_epi32(0x3f80));
  }
  static void store(InColumns in, uint16_t* row, Columns v) {
    _mm512_mask_storeu_epi16(row, _mm512_kunpackw(in.hi, in.lo),
                             (__m512i)_mm512_cvtne2ps_pbh(v.hi, v.lo));
  }
  static void stream(uint16_t* row, Columns v) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(row), (__m512i)_mm512_cvtne2ps_pbh(v.hi, v.lo));
  }
  static void store_half(InColumns in, uint16_t* row, __m512 lo) {
    _mm256_mask_storeu_epi16(row, in.lo, (__m256i)_mm512_cvtneps_pbh(lo));
  }

 private:
  static __m512i widened(__mmask16 in, const uint16_t* columns) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in, columns));
  }
};
#endif

/// Rows is F32Rows or Bf16Rows. kHalf: of up to 16 columns; the compiler leaves out what is not
/// stored.
template <class Rows, int kRows, bool kHalf>
struct TileEpilogue {
  using Item = typename Rows::Item;
  const Epilogue& f;
  int64_t row;  // the tile's first
  InColumns in;

  __attribute__((always_inline)) Columns load(const void* array) const {
    const auto* p = static_cast<const float*>(array);
    if constexpr (kHalf) return {F32Rows::load(in.lo, p), _mm512_setzero_ps()};
    else return {F32Rows::load(in.lo, p), F32Rows::load(in.hi, p + 16)};
  }
  template <class To = F32Rows>
  __attribute__((always_inline)) void store(void* to, Columns v) const {
    auto* p = static_cast<typename To::Item*>(to);
    if constexpr (kHalf) To::store_half(in, p, v.lo);
    else To::store(in, p, v);
  }

  __attribute__((always_inline)) const Item* first_row(const void* tensor) const {
    return static_cast<const Item*>(tensor) + row * f.stride;
  }

  /// out = value(its sums) for all rows.
  template <class F>
  __attribute__((always_inline)) void rows(const Accumulators<kRows>& c, F value) const {
    Item* out = static_cast<Item*>(f.out) + row * f.stride;
    const bool streams = !kHalf && f.streams;
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r, out += f.stride) {
      const Columns v = value({c.lo[r], c.hi[r]});
      if (streams) Rows::stream(out, v);
      else store<Rows>(out, v);
    }
  }
  __attribute__((always_inline)) void store_sums(const Accumulators<kRows>& c) const {
    const auto sums = [](Columns v) __attribute__((always_inline)) { return v; };
    rows(c, sums);
  }
  /// Sums start from the shift, which costs nothing. (Not from the residual: the first products
  /// would wait for it to come from memory.)
  __attribute__((always_inline)) void start(Accumulators<kRows>& c) const {
    Columns shift = load(f.map.shift);
    if constexpr (kHalf)  // as join_halves() has it
      shift = {interleave_lo(shift.lo, shift.hi), interleave_hi(shift.lo, shift.hi)};
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) c.lo[r] = shift.lo, c.hi[r] = shift.hi;
  }
  __attribute__((always_inline)) void add_residual(Accumulators<kRows>& c) const {
    if (f.residual == nullptr) return;
    const Item* residual = first_row(f.residual);
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r, residual += f.stride) {
      c.lo[r] = Rows::add(c.lo[r], in.lo, residual);
      if constexpr (!kHalf) c.hi[r] = Rows::add(c.hi[r], in.hi, residual + 16);
    }
  }
  __attribute__((always_inline)) void activate(Accumulators<kRows>& c) const {
    add_residual(c);
    if (f.activation == Activation::hardswish) rows(c, Hardswish());
    else rows(c, Clamp(f.activation));
  }

  __attribute__((always_inline)) void moments(const Accumulators<kRows>& c) const {
    const Columns center = load(f.map.center);
    Columns first = load(f.first), second = load(f.second);
    const auto summed = [&](Columns v) __attribute__((always_inline)) {
      const Columns distance = v - center;
      first = first + distance;
      second = fma(distance, distance, second);
      return v;
    };
    rows(c, summed);
    store(f.first, first);
    store(f.second, second);
  }

  /// One half of the columns after the other, in place: there are no registers for both. Even and
  /// odd rows are summed apart, so that the additions wait for each other less.
  __attribute__((always_inline)) void gradient(__m512 (&c)[kRows], __mmask16 there,
                                               int column) const {
    const auto array = [&](const void* p) __attribute__((always_inline)) {
      return F32Rows::load(there, static_cast<const float*>(p) + column);
    };
    const __m512 scale = array(f.map.scale), shift = array(f.map.shift),
                 center = array(f.map.center);
    const Passed passed(f.map.activation);
    __m512 first[2] = {}, second[2] = {};
    if (f.residual != nullptr) {
      const Item* residual = first_row(f.residual);
#pragma GCC unroll 14
      for (int r = 0; r < kRows; ++r, residual += f.stride)
        c[r] = Rows::add(c[r], there, residual + column);
    }
    const Item* x = first_row(f.x);
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r, x += f.stride) {
      const __m512 distance = _mm512_sub_ps(Rows::load(there, x + column), center);
      c[r] = passed(c[r], _mm512_fmadd_ps(distance, scale, shift));
      first[r % 2] = _mm512_add_ps(first[r % 2], c[r]);
      second[r % 2] = _mm512_fmadd_ps(c[r], distance, second[r % 2]);
    }
    const auto add_to = [&](void* p, const __m512(&sums)[2]) __attribute__((always_inline)) {
      _mm512_mask_storeu_ps(static_cast<float*>(p) + column, there,
                            _mm512_add_ps(array(p), _mm512_add_ps(sums[0], sums[1])));
    };
    add_to(f.first, first);
    add_to(f.second, second);
  }

  __attribute__((always_inline)) void gradient(Accumulators<kRows>& c) const {
    gradient(c.lo, in.lo, 0);
    if constexpr (!kHalf) gradient(c.hi, in.hi, 16);
    store_sums(c);
  }
};

// The ends of a tile that starts at `row`; kHalf: it has no more than 16 columns. fetched() tells
// what to prefetch for it, first what is written, and the bytes between its rows; start() what the
// sums start from.

/// C.
template <bool kHalfTile>
struct IntoC {
  static constexpr bool kHalf = kHalfTile;
  static constexpr int64_t kItem = sizeof(float);
  static constexpr int kTensors = 1;
  static constexpr bool kNextTile = false;  // fetched() is that of this tile

  static int64_t fetched(const GemmTile& tile, const char* (&at)[1]) {
    at[0] = static_cast<const char*>(tile.c);
    return tile.ldc * kItem;
  }
  template <int kRows>
  __attribute__((always_inline)) static void start(Accumulators<kRows>&, const GemmTile&, int64_t) {
  }
  template <int kRows>
  __attribute__((always_inline)) static void complete(Accumulators<kRows>& c, const GemmTile& tile,
                                                      int64_t row) {
    c.template store<kHalf>(tile, row);
  }
};

/// What tile.epilogue makes of it.
template <class Rows, Epilogue::Kind kKind, bool kHalfTile>
struct Completed {
  static constexpr bool kHalf = kHalfTile;
  using Kind = Epilogue::Kind;
  static constexpr int64_t kItem = sizeof(typename Rows::Item);
  static constexpr int kTensors = kKind == Kind::gradient ? 3 : kKind == Kind::activate ? 2 : 1;
  static constexpr bool kNextTile = true;

  static int64_t fetched(const GemmTile& tile, const char* (&at)[kTensors]) {
    const Epilogue& f = *tile.epilogue;
    // Lines that bypass the caches are none to own: in their place, what is read anyway.
    const void* const out = !f.streams ? f.out : kKind == Kind::gradient ? f.x : f.residual;
    const void* const tensors[3] = {out, f.residual, f.x};
    for (int i = 0; i < kTensors; ++i)
      at[i] = static_cast<const char*>(tensors[i] == nullptr ? out : tensors[i]);
    if (out != nullptr) return f.stride * kItem;
    for (const char*& p : at) p = reinterpret_cast<const char*>(&tile);
    return 0;
  }
  template <int kRows>
  __attribute__((always_inline)) static void start(Accumulators<kRows>& c, const GemmTile& tile,
                                                   int64_t row) {
    if constexpr (kKind == Kind::activate) of<kRows>(tile, row).start(c);
  }
  template <int kRows>
  __attribute__((always_inline)) static void complete(Accumulators<kRows>& c, const GemmTile& tile,
                                                      int64_t row) {
    if (tile.accumulate) c.template add<kHalf>(tile, row);
    const auto epilogue = of<kRows>(tile, row);
    if constexpr (kKind == Kind::store) epilogue.store_sums(c);
    else if constexpr (kKind == Kind::activate) epilogue.activate(c);
    else if constexpr (kKind == Kind::moments) epilogue.moments(c);
    else epilogue.gradient(c);
  }

 private:
  template <int kRows>
  __attribute__((always_inline)) static TileEpilogue<Rows, kRows, kHalf> of(const GemmTile& tile,
                                                                            int64_t row) {
    return {*tile.epilogue, row, InColumns(tile.n)};
  }
};

}  // namespace
}  // namespace quern::kernels
