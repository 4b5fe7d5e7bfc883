#include <immintrin.h>

#include "peak_simd.h"

namespace quern::bench {
namespace {
void run(int64_t rounds) {
  __m512 x = _mm512_set1_ps(1.0f), y = _mm512_set1_ps(0.5f);
  QUERN_TOUCH(x);
  QUERN_TOUCH(y);
  run_chains<24>(rounds, _mm512_setzero_ps(),
                 [&](__m512 sum) { return _mm512_fmadd_ps(x, y, sum); });
}
}  // namespace

constinit const ArithmeticLoop peak_f32_avx512{"f32 FMA, 512 bits", Isa::avx512, DType::f32,
                                               24 * 16 * 2, run};
constinit const MemoryLoop memory_avx512 = memory_loop<64>("64 bytes", Isa::avx512);

}  // namespace quern::bench
