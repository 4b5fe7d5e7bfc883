#include "quern/ops/kernels/pool/pool_registry.h"
#include "quern/ops/kernels/pool/pool_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::avx512bw;
constexpr Isa kIsa = Isa::avx512;
}  // namespace

constinit const PoolKernel pool_avx512[3] = {
    ChannelPool<float, Arch>::record("pool_f32_nhwc_avx512", kIsa, DType::f32),
    ChannelPool<bfloat16, Arch>::record("pool_bf16_nhwc_avx512", kIsa, DType::bf16),
    ChannelPool<double, Arch>::record("pool_f64_nhwc_avx512", kIsa, DType::f64),
};

}  // namespace quern::kernels
