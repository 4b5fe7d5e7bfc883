#include "quern/ops/kernels/optim/update_records.h"
#include "quern/ops/kernels/optim/update_simd.h"

namespace quern::kernels {

constinit const SgdKernel sgd_f32_avx2{"sgd_f32_avx2", Isa::avx2, DType::f32,
                                       sgd<xsimd::fma3<xsimd::avx2>>};
constinit const AdamWKernel adamw_f32_avx2{"adamw_f32_avx2", Isa::avx2, DType::f32,
                                           adamw<xsimd::fma3<xsimd::avx2>>};

}  // namespace quern::kernels
