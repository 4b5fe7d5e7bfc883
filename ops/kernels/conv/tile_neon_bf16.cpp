#include "quern/ops/kernels/conv/tile_registry.h"
#include "quern/ops/kernels/conv/tile_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::neon64;
constexpr Isa kIsa = Isa::neon_bf16;
}  // namespace

// Rounds by the instruction that the others spell out.
constinit const TileKernel conv_tile_neon_bf16[1] = {
    TileLoops<bfloat16, Arch>::record("conv_tile_bf16_neon_bf16", kIsa, DType::bf16),
};

}  // namespace quern::kernels
