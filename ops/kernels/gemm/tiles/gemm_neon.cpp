// 8×12 tiles in Neon: 24 accumulators of the 32 registers, three for a row of B, the others for
// elements of A, which an FMLA takes from any lane.
#include <arm_neon.h>

#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/rows.h"

namespace quern::kernels {
namespace {

constexpr int kMr = 8, kNr = 12;

template <int kRows>
struct Accumulators {
  float32x4_t v[kRows][3];  // columns 0..3, 4..7, 8..11

  __attribute__((always_inline)) Accumulators() {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) v[r][0] = v[r][1] = v[r][2] = vdupq_n_f32(0);
  }

  /// += x, an element of A, times a row of B.
  __attribute__((always_inline)) void add(int r, float x, float32x4_t b0, float32x4_t b1,
                                          float32x4_t b2) {
    v[r][0] = vfmaq_n_f32(v[r][0], b0, x);
    v[r][1] = vfmaq_n_f32(v[r][1], b1, x);
    v[r][2] = vfmaq_n_f32(v[r][2], b2, x);
  }

  /// += a column of A, its elements `stride` apart, times a row of B.
  __attribute__((always_inline)) void add_outer(const float* a, int64_t stride, float32x4_t b0,
                                                float32x4_t b1, float32x4_t b2) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) add(r, a[r * stride], b0, b1, b2);
  }

  __attribute__((always_inline)) void store(const GemmTile& tile) const {
    auto* c = static_cast<float*>(tile.c);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, c += tile.ldc) {
      if (tile.n == kNr) {
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i)
          vst1q_f32(c + 4 * i,
                    tile.accumulate ? vaddq_f32(v[r][i], vld1q_f32(c + 4 * i)) : v[r][i]);
      } else {
        float row[kNr];
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i) vst1q_f32(row + 4 * i, v[r][i]);
        for (int64_t j = 0; j < tile.n; ++j) c[j] = tile.accumulate ? c[j] + row[j] : row[j];
      }
    }
  }
};

template <bool kOuter>
struct F32 {
  template <int kRows>
  static void run(const GemmTile& tile) {
    Accumulators<kRows> c;
    const auto* prefetch = static_cast<const char*>(tile.prefetch);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const float*>(tile.a[i]);
      const auto* b = static_cast<const float*>(tile.b[i]);
      const int64_t ldb = kOuter ? tile.ldb : kNr;
      for (int64_t p = 0; p < tile.k; ++p, b += ldb) {
        if constexpr (kOuter) {
          __builtin_prefetch(prefetch, 0, 2);
          __builtin_prefetch(prefetch + 64, 0, 2);
          prefetch += tile.prefetch_step;
        }
        c.add_outer(a + (kOuter ? p * tile.lda : p), kOuter ? 1 : tile.lda, vld1q_f32(b),
                    vld1q_f32(b + 4), vld1q_f32(b + 8));
      }
    }
    c.store(tile);
  }
};

/// bf16 as the upper halves of f32: A is widened to a block of f32 first, so that the inner loop
/// reads its elements as f32; of the pairs of B one shift gives the even k, one mask the odd.
struct Bf16 {
  static constexpr int kBlock = 128;  // 4 KiB of f32 for 8 rows: beside a panel of B in L1

  static float32x4_t even(uint32x4_t pairs) {
    return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
  }
  static float32x4_t odd(uint32x4_t pairs) {
    return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
  }
  static uint32x4_t load(const uint16_t* b) { return vreinterpretq_u32_u16(vld1q_u16(b)); }

  static void widen(const uint16_t* a, int64_t k, float* wide) {
    int64_t p = 0;
    for (; p + 4 <= k; p += 4)
      vst1q_f32(wide + p, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(a + p), 16)));
    for (; p < k; ++p) {
      const uint32_t bits = static_cast<uint32_t>(a[p]) << 16;
      __builtin_memcpy(wide + p, &bits, sizeof bits);
    }
  }

  template <int kRows>
  static void run(const GemmTile& tile) {
    alignas(16) float wide[kRows][kBlock];
    Accumulators<kRows> c;
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const uint16_t*>(tile.b[i]);
      for (int64_t begin = 0; begin < tile.k; begin += kBlock) {
        const int64_t k = tile.k - begin < kBlock ? tile.k - begin : kBlock;
        for (int r = 0; r < kRows; ++r) widen(a + r * tile.lda + begin, k, wide[r]);
        for (int64_t p = 0; p < k; p += 2, b += 2 * kNr) {
          const uint32x4_t b0 = load(b), b1 = load(b + 8), b2 = load(b + 16);
          c.add_outer(&wide[0][p], kBlock, even(b0), even(b1), even(b2));
          c.add_outer(&wide[0][p + 1], kBlock, odd(b0), odd(b1), odd(b2));
        }
      }
    }
    c.store(tile);
  }
};

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_f32_f32_f32_8x12"),
     .isa = kIsa,
     .a = DType::f32,
     .mr = kMr,
     .nr = kNr,
     .run = dispatch_rows<F32<false>, kMr>,
     .run_outer = dispatch_rows<F32<true>, kMr>},
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_8x12k2"),
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
