#include "quern/ops/kernels/norm/layer_norm_registry.h"
#include "quern/ops/kernels/norm/layer_norm_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::fma3<xsimd::avx2>;
constexpr Isa kIsa = Isa::avx2;
}  // namespace

constinit const LayerNormKernel layer_norm_avx2[3] = {
    RowNorm<float, Arch>::record("layer_norm_f32_avx2", kIsa, DType::f32),
    RowNorm<bfloat16, Arch>::record("layer_norm_bf16_avx2", kIsa, DType::bf16),
    RowNorm<double, Arch>::record("layer_norm_f64_avx2", kIsa, DType::f64),
};

}  // namespace quern::kernels
