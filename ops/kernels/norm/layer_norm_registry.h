// The layer_norm kernels: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/norm/layer_norm_kernel.h"

namespace quern::kernels {

extern const LayerNormKernel layer_norm_avx512[3], layer_norm_avx2[3], layer_norm_portable[3],
    layer_norm_reference[3];

/// All records, best first.
std::span<const LayerNormKernel* const> layer_norm_kernels();
/// The first one for this dtype (bf16, f32 or f64) whose ISA is enabled.
const LayerNormKernel& select_layer_norm_kernel(DType dtype);

}  // namespace quern::kernels
