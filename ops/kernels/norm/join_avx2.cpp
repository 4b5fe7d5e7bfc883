#include "quern/ops/kernels/norm/join_registry.h"
#include "quern/ops/kernels/norm/join_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::fma3<xsimd::avx2>;
constexpr Isa kIsa = Isa::avx2;
}  // namespace

constinit const JoinKernel join_avx2[3] = {
    Join<float, Arch>::record("join_f32_avx2", kIsa, DType::f32),
    Join<bfloat16, Arch>::record("join_bf16_avx2", kIsa, DType::bf16),
    Join<double, Arch>::record("join_f64_avx2", kIsa, DType::f64),
};

}  // namespace quern::kernels
