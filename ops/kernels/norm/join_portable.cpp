#include "quern/ops/kernels/norm/join_registry.h"
#include "quern/ops/kernels/norm/join_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::default_arch;
constexpr Isa kIsa = Isa::portable;
}  // namespace

constinit const JoinKernel join_portable[3] = {
    Join<float, Arch>::record("join_f32_portable", kIsa, DType::f32),
    Join<bfloat16, Arch>::record("join_bf16_portable", kIsa, DType::bf16),
    Join<double, Arch>::record("join_f64_portable", kIsa, DType::f64),
};

}  // namespace quern::kernels
