#include "quern/ops/kernels/optim/update_records.h"
#include "quern/ops/kernels/optim/update_simd.h"

namespace quern::kernels {

constinit const SgdKernel sgd_f32_avx512{"sgd_f32_avx512", Isa::avx512, DType::f32,
                                         sgd<xsimd::avx512bw>};
constinit const AdamWKernel adamw_f32_avx512{"adamw_f32_avx512", Isa::avx512, DType::f32,
                                             adamw<xsimd::avx512bw>};

}  // namespace quern::kernels
