#include "quern/ops/softmax.h"

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/report.h"
#include "quern/ops/detail/rows.h"
#include "quern/ops/kernels/reduce/column.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using namespace detail;
using namespace kernels;

/// A function by rows and by columns.
struct Function {
  RowOp row;
  ColumnOp column;
};

/// y = f(x), or dx = f(x = y, dy), along a dimension; x is dense.
Tensor map_along(std::string_view op, Function f, const Tensor& x, int dim, const Tensor& dy = {}) {
  const Tensor y = empty_like(x);
  if (x.numel() == 0) return y;
  VerboseOp line(op);
  const Along s = along(x, dim);
  const int64_t bytes = (dy.defined() ? 3 : 2) * x.nbytes();
  const int64_t item = itemsize(x.dtype());
  const void* const of_dy = dy.defined() ? dy.data_ptr() : nullptr;
  if (goes_by_columns(s, kShortRow)) {
    const ColumnKernel& kernel = select_column(op, f.column, x.dtype());
    report(line, kernel.name, x, bytes);
    for_each_column(s, item, x.data_ptr(), of_dy, y.out_ptr(), [&](const ColumnData& c) {
      kernel.run({.rows = s.n, .n = c.count, .stride = c.stride, .x = c.x, .dy = c.dy, .y = c.y});
    });
    return y;
  }
  const RowKernel& kernel = select_row(op, f.row, x.dtype());
  report(line, kernel.name, x, bytes);
  for_each_row(
      s, item, x.data_ptr(), of_dy, y.out_ptr(),
      [&](const RowData& row) {
        kernel.run({.n = s.n, .count = row.count, .x = row.x, .dy = row.dy, .y = row.y});
      },
      rows_at_once(s.n));
  return y;
}

Tensor softmax_like(std::string_view op, Function forward, Function backward, const Tensor& input,
                    int64_t dim) {
  detail::check_dense(op, "x", input);
  check(is_floating(input.dtype()), op, "x: expected bf16, f32 or f64, got {}", input);
  const int d = normalize_dim(op, dim, input.dim());
  const Tensor x = autocast::widen(input);
  Tensor y = map_along(op, forward, raw::contiguous(x, x.format()), d);
  return record(op, y, {x},
                [op, backward, d, y = SavedTensor(op, y)](const Tensor& dy, Needs) -> Tensors {
                  const Tensor gradient = raw::contiguous(dy, y.get().format());
                  return {map_along(op, backward, y.get(), d, gradient)};
                });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) {
  return softmax_like("softmax", {RowOp::softmax, ColumnOp::softmax},
                      {RowOp::softmax_backward, ColumnOp::softmax_backward}, x, dim);
}

Tensor log_softmax(const Tensor& x, int64_t dim) {
  return softmax_like("log_softmax", {RowOp::log_softmax, ColumnOp::log_softmax},
                      {RowOp::log_softmax_backward, ColumnOp::log_softmax_backward}, x, dim);
}

}  // namespace quern
