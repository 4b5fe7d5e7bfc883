#include "quern/ops/kernels/reduce/row_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"
#include "quern/ops/kernels/reduce/row_records.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

std::span<const RowKernel* const> row_kernels() {
  static const std::vector<const RowKernel*> all = [] {
    std::vector<const RowKernel*> records;
    const auto append = [&](std::span<const RowKernel> table) {
      for (const RowKernel& record : table) records.push_back(&record);
    };
#if defined(__x86_64__)
    append(rows_avx512);
    append(rows_avx2);
#endif
    append(rows_portable);
    append(rows_reference);
    return records;
  }();
  return all;
}

const RowKernel& select_row(std::string_view caller, RowOp op, DType dtype) {
  const auto* kernel = first_enabled(caller, row_kernels(), [=](const RowKernel& record) {
    return record.op == op && record.dtype == dtype;
  });
  check(kernel, caller, "dtype: expected bf16, f32 or f64, got {}", dtype);
  return *kernel;
}

}  // namespace quern::kernels
