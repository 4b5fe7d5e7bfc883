// A dense tensor along one of its dimensions: the loops of sums, softmax, max, topk and the
// losses.
#pragma once
#include <string_view>

#include "quern/ops/kernels/reduce/column_kernel.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/tensor.h"

namespace quern::detail {

/// The elements of a dense tensor as they lie in memory, [outer][n][inner], n along the dimension
/// or along several that are neighbours. Row o·inner + i holds the elements
/// (o, 0, i) ... (o, n-1, i).
struct Along {
  int64_t outer, n, inner;
  int64_t rows() const { return outer * inner; }
};

/// `dense` must be so in its format().
Along along(const Tensor& dense, int dim);

/// What a row kernel sees of rows that follow each other: n adjacent elements each.
struct RowData {
  int64_t index;  // of the first
  int64_t count;
  const void *x, *dy;
  void* y;
};

/// Calls body on every row of x, dy and y (all [outer][n][inner] of `itemsize` bytes an element; dy
/// and y may be null), up to `at_once` of them. Where inner > 1, rows are gathered into scratch and
/// y is scattered from it.
void for_each_row(const Along& shape, int64_t itemsize, const void* x, const void* dy, void* y,
                  FunctionRef<void(const RowData&)> body, int64_t at_once = 1);

/// What a column kernel sees of rows: element k of row i at [k·stride + i].
struct ColumnData {
  int64_t index;  // of the first row
  int64_t count, stride;
  const void *x, *dy;
  void* y;
};

/// The same by columns, in parallel: of rows that lie side by side, or of short ones, which are
/// transposed into scratch, and y from it.
void for_each_column(const Along& shape, int64_t itemsize, const void* x, const void* dy, void* y,
                     FunctionRef<void(const ColumnData&)> body);
/// The longest rows of softmax and sums that gain by the transpose.
constexpr int64_t kShortRow = 24;
/// Are there enough rows side by side for that, or are they too short to keep the lanes of a row
/// kernel busy: `short_row` elements at most?
inline bool goes_by_columns(const Along& shape, int64_t short_row) {
  const bool is_short = shape.inner == 1 && shape.n <= short_row && shape.outer >= 16;
  return is_short || (shape.inner >= 8 && shape.n <= kernels::kMostRows);
}

/// The gradient of taking elements along a dimension: zeros of this shape and format, in dy's
/// dtype, but dy[o][j][i] at [o][indices[o][j][i]][i].
Tensor scatter_along(const Shape& shape, MemoryFormat format, int dim, const Tensor& dy,
                     const Tensor& indices);

}  // namespace quern::detail
