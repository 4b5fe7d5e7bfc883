// The pool kernels: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/pool/pool_kernel.h"

namespace quern::kernels {

extern const PoolKernel pool_avx512[3], pool_avx2[3], pool_portable[3], pool_planes[3],
    pool_reference[3];

/// All records, best first.
std::span<const PoolKernel* const> pool_kernels();
/// The first one for this dtype (bf16, f32 or f64) and numbers of channels and of a window's taps
/// whose ISA is enabled.
const PoolKernel& select_pool_kernel(DType dtype, int64_t channels, int64_t taps);

}  // namespace quern::kernels
