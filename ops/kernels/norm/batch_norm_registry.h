// The batch_norm kernels: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/norm/batch_norm_kernel.h"

namespace quern::kernels {

// f32, bf16 and f64, each nhwc and nchw.
extern const BatchNormKernel batch_norm_avx512[6], batch_norm_avx2[6], batch_norm_portable[6],
    batch_norm_reference[6];

/// All records, best first.
std::span<const BatchNormKernel* const> batch_norm_kernels();
/// The first one for this dtype (bf16, f32 or f64) and layout whose ISA is enabled.
const BatchNormKernel& select_batch_norm_kernel(DType dtype, bool nhwc);

}  // namespace quern::kernels
