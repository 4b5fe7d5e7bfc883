#include "quern/ops/softmax.h"

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/rows.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern {
namespace {

using namespace detail;
using namespace kernels;

/// y = f(x), or dx = f(x = y, dy), on the rows along a dimension; x is dense.
Tensor map_rows(std::string_view op, RowOp f, const Tensor& x, int dim, const Tensor& dy = {}) {
  const Tensor y = empty_like(x);
  if (x.numel() == 0) return y;
  VerboseOp line(op);
  const RowKernel& kernel = select_row(op, f, x.dtype());
  if (line)
    line.set(kernel.name, to_string(x.shape()), fmt::format("{}:{}", x.dtype(), x.format()));
  const Along s = along(x, dim);
  const void* gradient = dy.defined() ? dy.data_ptr() : nullptr;
  for_each_row(
      s, itemsize(x.dtype()), x.data_ptr(), gradient, y.out_ptr(),
      [&](const RowData& row) { kernel.run({.n = s.n, .x = row.x, .dy = row.dy, .y = row.y}); });
  return y;
}

Tensor softmax_like(std::string_view op, RowOp forward, RowOp backward, const Tensor& input,
                    int64_t dim) {
  check(input.defined(), op, "x: expected a defined tensor, got undefined");
  check(is_floating(input.dtype()), op, "x: expected bf16, f32 or f64, got {}", input);
  const int d = normalize_dim(op, dim, input.dim());
  const Tensor x = autocast::widen(input);
  Tensor y = map_rows(op, forward, raw::contiguous(x, x.format()), d);
  return record(op, y, {x},
                [op, backward, d, y = SavedTensor(op, y)](const Tensor& dy, Needs) -> Tensors {
                  const Tensor gradient = raw::contiguous(dy, y.get().format());
                  return {map_rows(op, backward, y.get(), d, gradient)};
                });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) {
  return softmax_like("softmax", RowOp::softmax, RowOp::softmax_backward, x, dim);
}

Tensor log_softmax(const Tensor& x, int64_t dim) {
  return softmax_like("log_softmax", RowOp::log_softmax, RowOp::log_softmax_backward, x, dim);
}

}  // namespace quern
