// The choice of a column kernel.
#pragma once
#include "quern/ops/kernels/reduce/column_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// `caller` is the op that errors name: a dtype that is not floating.
inline const ColumnKernel& select_column(std::string_view caller, ColumnOp op, DType dtype) {
  return select_by_dtype<ColumnKernel>(caller, dtype, [=](const ColumnKernel& record) {
    return record.op == op && record.dtype == dtype;
  });
}

}  // namespace quern::kernels
