#include "quern/ops/kernels/gemm/tiles/loop_avx512.h"

namespace quern::kernels {
namespace {

struct Pairs {
  using Item = uint16_t;
  static constexpr int64_t kKr = 2;
  /// An odd tap of a convolution leaves them 2-byte aligned.
  static __m512i broadcast(const char* a) {
    int32_t pair;
    __builtin_memcpy(&pair, a, sizeof pair);
    __m512i all = _mm512_set1_epi32(pair);
    asm("" : "+v"(all));  // clang 16 crashes when it folds the broadcast
    return all;
  }
  static __m512i broadcast_to_evens(const char* a) {
    int32_t pair;
    __builtin_memcpy(&pair, a, sizeof pair);
    return _mm512_maskz_set1_epi32(kEvens, pair);
  }
  static __m512i broadcast_two(const char* a) {
    int64_t pairs;
    __builtin_memcpy(&pairs, a, sizeof pairs);
    __m512i all = _mm512_set1_epi64(pairs);
    asm("" : "+v"(all));
    return all;
  }
  static __m512i load(const uint16_t* b) { return _mm512_loadu_si512(b); }
  static __m512 add(__m512 sum, __m512i a, __m512i b) { return add_pair_products(sum, a, b); }
};

struct Bf16 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    const bool wide = tile.epilogue != nullptr && tile.epilogue->wide;
    if (wide) dispatch_end<Tiles<Pairs, kRows>, F32Rows>(tile);
    else dispatch_end<Tiles<Pairs, kRows>, Bf16Rows>(tile);
  }
};

/// Two rows of B are paired in registers: two shuffles beside 28 multiplications cost less than
/// packing B first.
struct PairedRows {
  using Products = Pairs;
  /// The second row is `next` items on; 0: there is none.
  template <bool kHalf>
  __attribute__((always_inline)) static RowsOfB<Pairs> load(const uint16_t* b, int64_t next) {
    const auto row = [](const uint16_t* p) __attribute__((always_inline)) {
      if constexpr (kHalf)
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
      else return Pairs::load(p);
    };
    const __m512i even = row(b), odd = next != 0 ? row(b + next) : _mm512_setzero_si512();
    if constexpr (kHalf) return {_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)), __m512i{}};
    else return {_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)};
  }
  /// Pairing leaves columns 0-3, 8-11, 16-19, 24-27 in lo.
  template <bool kHalf, int kRows>
  __attribute__((always_inline)) static void sort(Accumulators<kRows>& c) {
    if constexpr (kHalf) return;
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      const __m512 lo = c.lo[r], hi = c.hi[r];
      c.lo[r] = _mm512_permutex2var_ps(lo, first, hi);
      c.hi[r] = _mm512_permutex2var_ps(lo, last, hi);
    }
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_14x32k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = kMr,
     .nr = kNr,
     .kr = 2,
     .run = dispatch_rows<Bf16, kMr>,
     .run_outer = dispatch_rows<Outer<PairedRows>, kNarrowMr>,
     .narrow_mr = kNarrowMr,
     .takes_epilogues = true},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
