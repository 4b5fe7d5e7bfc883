// The records of kernels.inc, declared for the files that define them.
#pragma once
#include "quern/ops/kernels/optim/update_kernel.h"

namespace quern::kernels {
#define QUERN_SGD_KERNEL(record) extern const SgdKernel record;
#define QUERN_ADAMW_KERNEL(record) extern const AdamWKernel record;
#include "quern/ops/kernels/optim/kernels.inc"
}  // namespace quern::kernels
