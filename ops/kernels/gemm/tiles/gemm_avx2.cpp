// 6×16 tiles in AVX2: 12 accumulators, two vectors of B and one broadcast of A in 16 registers.
#include <immintrin.h>

#include "quern/ops/kernels/gemm/tiles/loop_vectors.h"

namespace quern::kernels {
namespace {

struct Avx2 {
  using Vector = __m256;
  using Pairs = __m256i;
  static constexpr int kMr = 6, kVectors = 2, kLanes = 8, kNr = kVectors * kLanes;

  static Vector load(const float* b) { return _mm256_loadu_ps(b); }
  static Vector fma(const float* a, Vector b, Vector sum) {
    return _mm256_fmadd_ps(_mm256_broadcast_ss(a), b, sum);
  }
  static void store(float* c, Vector sum, int64_t n, bool accumulate) {
    const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                                             _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (accumulate) sum = _mm256_add_ps(sum, _mm256_maskload_ps(c, there));
    _mm256_maskstore_ps(c, there, sum);
  }

  static Pairs load_pairs(const uint16_t* b) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
  }
  static Vector even(Pairs pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static Vector odd(Pairs pairs) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
  }
  static void widen(const uint16_t* a, float* wide) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    _mm256_storeu_ps(wide, even(_mm256_cvtepu16_epi32(x)));
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_6x16"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = Avx2::kMr,
     .nr = Avx2::kNr,
     .run = dispatch_rows<F32Tile<Avx2, false>, Avx2::kMr>,
     .run_outer = dispatch_rows<F32Tile<Avx2, true>, Avx2::kMr>},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_6x16k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = Avx2::kMr,
     .nr = Avx2::kNr,
     .kr = 2,
     .run = dispatch_rows<Bf16Tile<Avx2>, Avx2::kMr>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
