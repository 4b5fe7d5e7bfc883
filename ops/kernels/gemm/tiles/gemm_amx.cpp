#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/ops/kernels/gemm/tiles/strip_amx.h"
#include "quern/ops/kernels/gemm/tiles/strip_epilogue_avx512.h"
#include "quern/ops/kernels/gemm/tiles/tile_amx.h"

namespace quern::kernels {
namespace {

/// GCC 12's tile intrinsics are macros that paste the name of the register, so a template's
/// argument cannot reach them, and they hide what they read: its LDTILECFG 56 of the 64 bytes, its
/// TILELOADD all.
struct HardwareTiles {
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int t>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
  }
  template <int t>
  static void load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(t) : "memory");
  }
  template <int t>
  static void store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(t) : "memory");
  }
  template <int c, int a, int b>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }
};

using Kernel = AmxGemm<HardwareTiles>;

constexpr GemmKernel kRecords[] = {
    {.name = QUERN_NAMED("gemm_bf16_bf16_f32_32x32k2"),
     .isa = kIsa,
     .a = DType::bf16,
     .mr = Kernel::kMr,
     .nr = Kernel::kNr,
     .kr = Kernel::kKr,
     .k_multiple = Kernel::kKMultiple,
     .run = Kernel::run,
     .run_strip = AmxStrip<HardwareTiles, Avx512StripEpilogue>::run,
     .enter = Kernel::enter,
     .leave = Kernel::leave},
};

}  // namespace

QUERN_KERNELS(GemmKernel, gemm, kRecords)

}  // namespace quern::kernels
