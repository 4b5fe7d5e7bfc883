#include "quern/ops/kernels/norm/layer_norm_registry.h"
#include "quern/ops/kernels/norm/layer_norm_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::avx512bw;
constexpr Isa kIsa = Isa::avx512;
}  // namespace

constinit const LayerNormKernel layer_norm_avx512[3] = {
    RowNorm<float, Arch>::record("layer_norm_f32_avx512", kIsa, DType::f32),
    RowNorm<bfloat16, Arch>::record("layer_norm_bf16_avx512", kIsa, DType::bf16),
    RowNorm<double, Arch>::record("layer_norm_f64_avx512", kIsa, DType::f64),
};

}  // namespace quern::kernels
