#include "quern/ops/kernels/gemm/tiles/loop_avx512.h"

namespace quern::kernels {
namespace {

struct Singles {
  using Item = float;
  static constexpr int64_t kKr = 1;
  static __m512 broadcast(const char* a) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(a));
  }
  static __m512 broadcast_to_evens(const char* a) {
    return _mm512_maskz_broadcastss_ps(kEvens, _mm_load_ss(reinterpret_cast<const float*>(a)));
  }
  static __m512 broadcast_two(const char* a) {
    double two;
    __builtin_memcpy(&two, a, sizeof two);
    return _mm512_castpd_ps(_mm512_set1_pd(two));
  }
  static __m512 load(const float* b) { return _mm512_loadu_ps(b); }
  static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};

struct F32 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    dispatch_end<Tiles<Singles, kRows>, F32Rows>(tile);
  }
};

struct SingleRows {
  using Products = Singles;
  template <bool kHalf>
  static RowsOfB<Singles> load(const float* b, int64_t) {
    if constexpr (kHalf) return {Singles::load(b), __m512{}};
    else return {Singles::load(b), Singles::load(b + kNr / 2)};
  }
  template <bool kHalf, int kRows>
  static void sort(Accumulators<kRows>&) {}
};

/// Rows of bf16, rounded without an instruction for it.
struct Bf16Rows {
  using Item = uint16_t;
  static __m512 load(__mmask16 in, const uint16_t* columns) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in, columns));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  }
  static __m512 add(__m512 sum, __mmask16 in, const uint16_t* columns) {
    return _mm512_add_ps(sum, load(in, columns));
  }
  static void store(InColumns in, uint16_t* row, Columns v) {
    _mm512_mask_storeu_epi16(row, _mm512_kunpackw(in.hi, in.lo), narrowed(v));
  }
  static void stream(uint16_t* row, Columns v) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(row), narrowed(v));
  }
  static void store_half(InColumns in, uint16_t* row, __m512 lo) {
    _mm256_mask_storeu_epi16(row, in.lo, narrowed(lo));
  }

 private:
  static __m512i narrowed(Columns v) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrowed(v.lo)), narrowed(v.hi), 1);
  }
  /// To nearest even; a NaN becomes quiet.
  static __m256i narrowed(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, high, _mm512_set1_epi32(0x40)));
  }
};

/// Tiles of bf16, which is the upper half of f32: A is widened to a block of f32 first, so that the
/// inner loop broadcasts it from memory; of the pairs of B one shift gives the even k, one mask the
/// odd.
template <int kRows>
struct WidenedTiles {
  template <class End>
  __attribute__((noinline)) static void run(const GemmTile& tile) {
    alignas(64) float wide[kRows][kBlock];
    Fetches<End, kRows> fetches(tile);
    int64_t row = 0;
    do {
      Accumulators<kRows> c;
      End::start(c, tile, row);
      for (int64_t i = 0; i < tile.batch; ++i) {
        const auto* a = static_cast<const uint16_t*>(tile.a[i]) + row * tile.lda;
        const auto* b = static_cast<const uint16_t*>(tile.b[i]);
        for (int64_t begin = 0; begin < tile.k; begin += kBlock) {
          const int64_t k = tile.k - begin < kBlock ? tile.k - begin : kBlock;
          for (int r = 0; r < kRows; ++r) widen(a + r * tile.lda + begin, k, wide[r]);
          for (int64_t p = 0; p < k; p += 2, b += 2 * kNr) {
            if (p % 4 == 0) fetches.step();
            const EvenRows rows{&wide[0][p], sizeof(wide[0])};
            const __m512i lo = _mm512_loadu_si512(b);
            if constexpr (End::kHalf) {
              add_half<Singles>(c, rows, even(lo), odd(lo));
            } else {
              const __m512i hi = _mm512_loadu_si512(b + kNr);
              add_products<Singles>(c, rows, 0, even(lo), even(hi));
              add_products<Singles>(c, rows, sizeof(float), odd(lo), odd(hi));
            }
          }
        }
      }
      fetches.rest(tile);
      if constexpr (End::kHalf) c.join_halves();
      End::complete(c, tile, row);
      fetches.next_tile();
      row += kRows;
    } while (row < tile.tiles * kRows);
  }

 private:
  static constexpr int kBlock = 128;  // 7 KiB of f32 for 14 rows: beside a panel of B in L1

  static void widen(const uint16_t* a, int64_t k, float* wide) {
    for (int64_t p = 0; p < k; p += 16) {
      const auto in = static_cast<__mmask16>(k - p >= 16 ? 0xffff : (1 << (k - p)) - 1);
      _mm512_storeu_ps(wide + p, Bf16Rows::load(in, a + p));
    }
  }
  static __m512 even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static __m512 odd(__m512i pairs) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
  }
};

struct Bf16 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    const bool wide = tile.epilogue != nullptr && tile.epilogue->wide;
    if (wide) dispatch_end<WidenedTiles<kRows>, F32Rows>(tile);
    else dispatch_end<WidenedTiles<kRows>, Bf16Rows>(tile);
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_14x32"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = kMr,
     .nr = kNr,
     .run = dispatch_rows<F32, kMr>,
     .run_outer = dispatch_rows<Outer<SingleRows>, kNarrowMr>,
     .narrow_mr = kNarrowMr,
     .takes_epilogues = true},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_14x32k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = kMr,
     .nr = kNr,
     .kr = 2,
     .run = dispatch_rows<Bf16, kMr>,
     .takes_epilogues = true},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
