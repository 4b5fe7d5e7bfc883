#include "quern/ops/kernels/pool/pool_registry.h"
#include "quern/ops/kernels/pool/pool_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::default_arch;
constexpr Isa kIsa = Isa::portable;
}  // namespace

constinit const PoolKernel pool_portable[3] = {
    ChannelPool<float, Arch>::record("pool_f32_nhwc_portable", kIsa, DType::f32),
    ChannelPool<bfloat16, Arch>::record("pool_bf16_nhwc_portable", kIsa, DType::bf16),
    ChannelPool<double, Arch>::record("pool_f64_nhwc_portable", kIsa, DType::f64),
};

}  // namespace quern::kernels
