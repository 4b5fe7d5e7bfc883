#include <immintrin.h>

#include "peak_simd.h"

namespace quern::bench {
namespace {
void run(int64_t rounds) {
  __m256 x = _mm256_set1_ps(1.0f), y = _mm256_set1_ps(0.5f);
  QUERN_TOUCH(x);
  QUERN_TOUCH(y);
  run_chains<12>(rounds, _mm256_setzero_ps(),
                 [&](__m256 sum) { return _mm256_fmadd_ps(x, y, sum); });
}
}  // namespace

constinit const ArithmeticLoop peak_f32_avx2{"f32 FMA, 256 bits", Isa::avx2, DType::f32, 12 * 8 * 2,
                                             run};
constinit const MemoryLoop memory_avx2 = memory_loop<32>("32 bytes", Isa::avx2);

}  // namespace quern::bench
