// The update kernels: the list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/optim/update_kernel.h"

namespace quern::kernels {

/// All records of kernels.inc, in its order.
std::span<const SgdKernel* const> sgd_kernels();
std::span<const AdamWKernel* const> adamw_kernels();

/// The first record for this dtype of parameters whose ISA is enabled. Error: not bf16, f32 or f64.
const SgdKernel& select_sgd_kernel(DType param);
const AdamWKernel& select_adamw_kernel(DType param);

}  // namespace quern::kernels
