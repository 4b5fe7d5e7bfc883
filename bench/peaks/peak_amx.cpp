#include "peak_kernel.h"

namespace quern::bench {
namespace {

/// What LDTILECFG reads: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// Six sums of tile 6 by tile 7, all zero: the time of a product does not depend on its factors.
void run(int64_t rounds) {
  const TileConfig config;
  asm volatile("ldtilecfg %0" ::"m"(config));
  asm volatile(
      "tilezero %tmm0; tilezero %tmm1; tilezero %tmm2; tilezero %tmm3;"
      "tilezero %tmm4; tilezero %tmm5; tilezero %tmm6; tilezero %tmm7");
  for (int64_t i = 0; i < rounds; ++i)
    asm volatile(
        "tdpbf16ps %tmm7, %tmm6, %tmm0; tdpbf16ps %tmm7, %tmm6, %tmm1;"
        "tdpbf16ps %tmm7, %tmm6, %tmm2; tdpbf16ps %tmm7, %tmm6, %tmm3;"
        "tdpbf16ps %tmm7, %tmm6, %tmm4; tdpbf16ps %tmm7, %tmm6, %tmm5");
  asm volatile("tilerelease");
}
}  // namespace

constinit const ArithmeticLoop peak_bf16_amx{"bf16 tdpbf16ps, AMX", Isa::amx, DType::bf16,
                                             6 * 16 * 16 * 32 * 2, run};

}  // namespace quern::bench
