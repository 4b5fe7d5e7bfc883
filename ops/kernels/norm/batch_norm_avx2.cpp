#include "quern/ops/kernels/norm/batch_norm_registry.h"
#include "quern/ops/kernels/norm/batch_norm_simd.h"

namespace quern::kernels {
namespace {
using Arch = xsimd::fma3<xsimd::avx2>;
constexpr Isa kIsa = Isa::avx2;
}  // namespace

constinit const BatchNormKernel batch_norm_avx2[6] = {
    batch_norm_record<Nhwc<float, Arch>>("batch_norm_f32_nhwc_avx2", kIsa, DType::f32, true),
    batch_norm_record<Nchw<float, Arch>>("batch_norm_f32_nchw_avx2", kIsa, DType::f32, false),
    batch_norm_record<Nhwc<bfloat16, Arch>>("batch_norm_bf16_nhwc_avx2", kIsa, DType::bf16, true),
    batch_norm_record<Nchw<bfloat16, Arch>>("batch_norm_bf16_nchw_avx2", kIsa, DType::bf16, false),
    batch_norm_record<Nhwc<double, Arch>>("batch_norm_f64_nhwc_avx2", kIsa, DType::f64, true),
    batch_norm_record<Nchw<double, Arch>>("batch_norm_f64_nchw_avx2", kIsa, DType::f64, false),
};

}  // namespace quern::kernels
