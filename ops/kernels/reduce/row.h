// The choice of a row kernel.
#pragma once
#include "quern/ops/kernels/reduce/row_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// `caller` is the op that errors name: a dtype that is not floating.
inline const RowKernel& select_row(std::string_view caller, RowOp op, DType dtype) {
  const auto* kernel = select<RowKernel>(
      caller, [=](const RowKernel& record) { return record.op == op && record.dtype == dtype; });
  check(kernel, caller, "dtype: expected bf16, f32 or f64, got {}", dtype);
  return *kernel;
}

}  // namespace quern::kernels
