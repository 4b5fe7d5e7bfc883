#include "quern/ops/kernels/pool/pool_registry.h"
#include "quern/ops/kernels/pool/pool_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::fma3<xsimd::avx2>;
constexpr Isa kIsa = Isa::avx2;
}  // namespace

constinit const PoolKernel pool_avx2[3] = {
    ChannelPool<float, Arch>::record("pool_f32_nhwc_avx2", kIsa, DType::f32),
    ChannelPool<bfloat16, Arch>::record("pool_bf16_nhwc_avx2", kIsa, DType::bf16),
    ChannelPool<double, Arch>::record("pool_f64_nhwc_avx2", kIsa, DType::f64),
};

}  // namespace quern::kernels
