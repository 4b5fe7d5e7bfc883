// Copies of matrices: dense, transposed, rounded to bf16. Item sizes are 2, 4 or 8 bytes; strides
// count items.
#pragma once
#include <type_traits>

#include "quern/ops/kernels/pack/bf16_terms.h"
#include "quern/ops/kernels/pack/copy_kernel.h"

namespace quern::kernels {

/// Calls f with the unsigned integer of `item` bytes.
template <class F>
void visit_item(int64_t item, F f) {
  if (item == 2) f(std::type_identity<uint16_t>{});
  else if (item == 4) f(std::type_identity<uint32_t>{});
  else f(std::type_identity<uint64_t>{});
}

/// The loops of this CPU.
const CopyKernel& copy_kernel();

/// dst[i][j] = src[i·row_stride + j·col_stride] for i < rows, j < cols; dst rows are dst_stride
/// apart. Row copies and transposes, which have a stride of 1, are fast.
void copy_matrix(int64_t item, const void* src, int64_t row_stride, int64_t col_stride, void* dst,
                 int64_t dst_stride, int64_t rows, int64_t cols);

/// Of bf16, f32 or f64.
template <class T>
void map_matrix(const MapCopy& matrix) {
  if constexpr (sizeof(T) == 2) copy_kernel().map_bf16(matrix);
  else if constexpr (sizeof(T) == 4) copy_kernel().map_f32(matrix);
  else copy_kernel().map_f64(matrix);
}

/// copy_matrix from f32 to its terms, those of each `term_stride` items behind the one before.
void round_matrix(const float* src, int64_t row_stride, int64_t col_stride, bfloat16* dst,
                  int64_t dst_stride, int64_t rows, int64_t cols, int terms, int64_t term_stride);
/// The same with a map, where there is one, and `column_step` between items of a row.
void round_matrix(TermCopy copy, int64_t column_step);

}  // namespace quern::kernels
