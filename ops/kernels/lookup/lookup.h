// Lookups on all threads, and the choice of their kernels. Cells are cut by shape, and each row
// that is written belongs to one of them, so that no number of threads changes a bit.
#pragma once
#include "quern/ops/kernels/lookup/lookup_kernel.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

const RowCopyKernel& select_row_copy();
/// Error: no kernel for these types (f32, bf16 or f16 to f32; f32 or themselves to bf16 and f16;
/// f64 to f64).
const SegmentSumKernel& select_segment_sum(DType from, DType to);

/// Decides about `stream` itself. No row of to_index is there twice.
void copy_rows(const RowCopyKernel& kernel, RowCopy copy);
/// A segment whose rows are more than 4 MiB is summed in parts, by shape, whose sums are added up.
void segment_sum(const SegmentSumKernel& kernel, const SegmentSum& sum);

}  // namespace quern::kernels
