// The tables of records, one an instruction set, declared for the files that define them.
#pragma once
#include "quern/ops/kernels/reduce/row_kernel.h"

namespace quern::kernels {

inline constexpr int kRowOps = 0
#define QUERN_ROW(op) +1
#include "quern/ops/kernels/reduce/ops.inc"
    ;

extern const RowKernel rows_avx512[2 * kRowOps];  // f32 and bf16 of each function
extern const RowKernel rows_avx2[2 * kRowOps];
extern const RowKernel rows_portable[2 * kRowOps];
extern const RowKernel rows_reference[3 * kRowOps];  // and f64

}  // namespace quern::kernels
