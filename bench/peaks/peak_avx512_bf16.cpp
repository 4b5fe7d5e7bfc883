#include <immintrin.h>

#include "peak_simd.h"

namespace quern::bench {
namespace {
void run(int64_t rounds) {
  __m512i ones = _mm512_set1_epi16(0x3f80);  // 1.0
  QUERN_TOUCH(ones);
  run_chains<24>(rounds, _mm512_setzero_ps(),
                 [&](__m512 sum) { return _mm512_dpbf16_ps(sum, (__m512bh)ones, (__m512bh)ones); });
}
}  // namespace

constinit const ArithmeticLoop peak_bf16_avx512_bf16{"bf16 vdpbf16ps, 512 bits", Isa::avx512_bf16,
                                                     DType::bf16, 24 * 32 * 2, run};

}  // namespace quern::bench
