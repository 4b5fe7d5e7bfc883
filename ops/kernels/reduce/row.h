// The choice of a row kernel.
#pragma once
#include "quern/ops/kernels/reduce/row_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// `caller` is the op that errors name: a dtype that is not floating.
inline const RowKernel& select_row(std::string_view caller, RowOp op, DType dtype) {
  return select_by_dtype<RowKernel>(caller, dtype, [=](const RowKernel& record) {
    return record.op == op && record.dtype == dtype;
  });
}

}  // namespace quern::kernels
