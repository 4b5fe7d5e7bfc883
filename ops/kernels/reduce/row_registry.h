// The row kernels: the list and the choice.
#pragma once
#include <span>
#include <string_view>

#include "quern/ops/kernels/reduce/row_kernel.h"

namespace quern::kernels {

/// Every record, for each function and dtype best first, the reference last.
std::span<const RowKernel* const> row_kernels();

/// The first record of this function and dtype whose ISA is enabled. `caller` is the op that errors
/// name: a dtype that is not floating.
const RowKernel& select_row(std::string_view caller, RowOp op, DType dtype);

}  // namespace quern::kernels
