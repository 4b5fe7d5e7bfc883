#include "quern/ops/kernels/conv/tile_registry.h"
#include "quern/ops/kernels/conv/tile_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::avx512bw;
constexpr Isa kIsa = Isa::avx512;
}  // namespace

constinit const TileKernel conv_tile_avx512[3] = {
    TileLoops<float, Arch>::record("conv_tile_f32_avx512", kIsa, DType::f32),
    TileLoops<bfloat16, Arch>::record("conv_tile_bf16_avx512", kIsa, DType::bf16),
    TileLoops<double, Arch>::record("conv_tile_f64_avx512", kIsa, DType::f64),
};

}  // namespace quern::kernels
