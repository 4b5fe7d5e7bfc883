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
    dispatch_end<Singles, kRows, F32Rows>(tile);
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

/// bf16 as the upper halves of f32: A is widened to a block of f32 first, so that the inner loop
/// broadcasts it from memory; of the pairs of B one shift gives the even k, one mask the odd.
struct Bf16 {
  static constexpr int kBlock = 128;  // 7 KiB of f32 for 14 rows: beside a panel of B in L1

  static void widen(const uint16_t* a, int64_t k, float* wide) {
    for (int64_t p = 0; p < k; p += 16) {
      const auto in = static_cast<__mmask16>(k - p >= 16 ? 0xffff : (1 << (k - p)) - 1);
      const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in, a + p));
      _mm512_storeu_si512(wide + p, _mm512_slli_epi32(x, 16));
    }
  }

  template <int kRows>
  static void run(const GemmTile& tile) {
    alignas(64) float wide[kRows][kBlock];
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    Accumulators<kRows> c;
    Fetches<IntoC<false>, kRows> fetches(tile);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const uint16_t*>(tile.b[i]);
      for (int64_t begin = 0; begin < tile.k; begin += kBlock) {
        const int64_t k = tile.k - begin < kBlock ? tile.k - begin : kBlock;
        for (int r = 0; r < kRows; ++r) widen(a + r * tile.lda + begin, k, wide[r]);
        for (int64_t p = 0; p < k; p += 2, b += 2 * kNr) {
          if (p % 4 == 0) fetches.step();
          const __m512i lo = _mm512_loadu_si512(b), hi = _mm512_loadu_si512(b + kNr);
          const EvenRows rows{&wide[0][p], sizeof(wide[0])};
          add_products<Singles>(c, rows, 0, _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16)),
                                _mm512_castsi512_ps(_mm512_slli_epi32(hi, 16)));
          add_products<Singles>(c, rows, sizeof(float),
                                _mm512_castsi512_ps(_mm512_and_si512(lo, upper)),
                                _mm512_castsi512_ps(_mm512_and_si512(hi, upper)));
        }
      }
    }
    c.store(tile);
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
     .run = dispatch_rows<Bf16, kMr>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
