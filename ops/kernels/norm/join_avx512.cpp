#include "quern/ops/kernels/norm/join_registry.h"
#include "quern/ops/kernels/norm/join_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::avx512bw;
constexpr Isa kIsa = Isa::avx512;
}  // namespace

constinit const JoinKernel join_avx512[3] = {
    Join<float, Arch>::record("join_f32_avx512", kIsa, DType::f32),
    Join<bfloat16, Arch>::record("join_bf16_avx512", kIsa, DType::bf16),
    Join<double, Arch>::record("join_f64_avx512", kIsa, DType::f64),
};

}  // namespace quern::kernels
