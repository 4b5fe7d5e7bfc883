// The join kernels: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/norm/join_kernel.h"

namespace quern::kernels {

// f32, bf16 and f64.
extern const JoinKernel join_avx512[3], join_avx2[3], join_portable[3], join_reference[3];

/// All records, best first.
std::span<const JoinKernel* const> join_kernels();
/// The first one for this dtype (bf16, f32 or f64) whose ISA is enabled.
const JoinKernel& select_join_kernel(DType dtype);

}  // namespace quern::kernels
