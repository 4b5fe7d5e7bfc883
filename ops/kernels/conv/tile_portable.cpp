#include "quern/ops/kernels/conv/tile_registry.h"
#include "quern/ops/kernels/conv/tile_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::default_arch;
constexpr Isa kIsa = Isa::portable;
}  // namespace

constinit const TileKernel conv_tile_portable[3] = {
    TileLoops<float, Arch>::record("conv_tile_f32_portable", kIsa, DType::f32),
    TileLoops<bfloat16, Arch>::record("conv_tile_bf16_portable", kIsa, DType::bf16),
    TileLoops<double, Arch>::record("conv_tile_f64_portable", kIsa, DType::f64),
};

}  // namespace quern::kernels
