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

/// Calls body(first, columns) on parts of the columns of [outer][n][inner], in parallel: `first` is
/// the element they begin at in the first of their n rows, which are `inner` apart.
void for_each_strip(const Along& shape, FunctionRef<void(int64_t, int64_t)> body);
/// Are columns long enough side by side for that, rather than to be gathered as rows?
inline bool goes_by_strips(const Along& shape) {
  return shape.inner >= 8 && shape.n <= kernels::kMostRows;
}

/// The gradient of taking elements along a dimension: zeros of this shape and format, in dy's
/// dtype, but dy[o][j][i] at [o][indices[o][j][i]][i].
Tensor scatter_along(const Shape& shape, MemoryFormat format, int dim, const Tensor& dy,
                     const Tensor& indices);

}  // namespace quern::detail
