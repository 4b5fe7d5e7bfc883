#include "quern/ops/kernels/norm/layer_norm_registry.h"
#include "quern/ops/kernels/norm/layer_norm_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::default_arch;
constexpr Isa kIsa = Isa::portable;
}  // namespace

constinit const LayerNormKernel layer_norm_portable[3] = {
    RowNorm<float, Arch>::record("layer_norm_f32_portable", kIsa, DType::f32),
    RowNorm<bfloat16, Arch>::record("layer_norm_bf16_portable", kIsa, DType::bf16),
    RowNorm<double, Arch>::record("layer_norm_f64_portable", kIsa, DType::f64),
};

}  // namespace quern::kernels
