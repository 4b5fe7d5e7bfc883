#include "quern/ops/kernels/conv/tile_registry.h"
#include "quern/ops/kernels/conv/tile_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::fma3<xsimd::avx2>;
constexpr Isa kIsa = Isa::avx2;
}  // namespace

constinit const TileKernel conv_tile_avx2[3] = {
    TileLoops<float, Arch>::record("conv_tile_f32_avx2", kIsa, DType::f32),
    TileLoops<bfloat16, Arch>::record("conv_tile_bf16_avx2", kIsa, DType::bf16),
    TileLoops<double, Arch>::record("conv_tile_f64_avx2", kIsa, DType::f64),
};

}  // namespace quern::kernels
