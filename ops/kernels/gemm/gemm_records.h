// The records of kernels.inc, declared for the files that define them.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"

namespace quern::kernels {
#define QUERN_GEMM_KERNEL(record) extern const GemmKernel record;
#include "quern/ops/kernels/gemm/kernels.inc"
}  // namespace quern::kernels
