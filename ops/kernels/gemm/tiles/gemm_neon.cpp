// 8×12 tiles in Neon: 24 accumulators of the 32 registers, three for a row of B, the others for
// elements of A, which an FMLA takes from any lane.
#include <arm_neon.h>

#include "quern/ops/kernels/gemm/tiles/loop_vectors.h"

namespace quern::kernels {
namespace {

struct Neon {
  using Vector = float32x4_t;
  using Pairs = uint32x4_t;
  static constexpr int kMr = 8, kVectors = 3, kLanes = 4, kNr = kVectors * kLanes;

  static Vector load(const float* b) { return vld1q_f32(b); }
  static Vector fma(const float* a, Vector b, Vector sum) { return vfmaq_n_f32(sum, b, *a); }
  static void store(float* c, Vector sum, int64_t n, bool accumulate) {
    if (n >= kLanes) return vst1q_f32(c, accumulate ? vaddq_f32(sum, vld1q_f32(c)) : sum);
    float lanes[kLanes];
    vst1q_f32(lanes, sum);
    for (int64_t j = 0; j < n; ++j) c[j] = accumulate ? c[j] + lanes[j] : lanes[j];
  }

  static Pairs load_pairs(const uint16_t* b) { return vreinterpretq_u32_u16(vld1q_u16(b)); }
  static Vector even(Pairs pairs) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); }
  static Vector odd(Pairs pairs) {
    return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
  }
  static void widen(const uint16_t* a, float* wide) {
    vst1q_f32(wide, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(a), 16)));
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_8x12"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = Neon::kMr,
     .nr = Neon::kNr,
     .run = dispatch_rows<F32Tile<Neon, false>, Neon::kMr>,
     .run_outer = dispatch_rows<F32Tile<Neon, true>, Neon::kMr>},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_8x12k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = Neon::kMr,
     .nr = Neon::kNr,
     .kr = 2,
     .run = dispatch_rows<Bf16Tile<Neon>, Neon::kMr>},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
