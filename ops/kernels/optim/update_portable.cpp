#include "quern/ops/kernels/optim/update_records.h"
#include "quern/ops/kernels/optim/update_simd.h"

namespace quern::kernels {

constinit const SgdKernel sgd_f32_portable{"sgd_f32_portable", Isa::portable, DType::f32,
                                           sgd<xsimd::default_arch>};
constinit const AdamWKernel adamw_f32_portable{"adamw_f32_portable", Isa::portable, DType::f32,
                                               adamw<xsimd::default_arch>};

}  // namespace quern::kernels
