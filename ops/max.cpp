#include "quern/ops/max.h"

#include <algorithm>

#include "quern/autograd/node.h"
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

/// Values and indices with the dimension kept, in x's format. Floating rows go to the kernels,
/// which give the value in what they accumulate in: exact, so the element is taken from its place.
MaxResult max_kept(std::string_view op, const Tensor& x, int dim) {
  Shape shape = x.shape();
  shape[dim] = 1;
  const MaxResult y{empty(shape, x.dtype(), x.format()), empty(shape, DType::i64, x.format())};
  VerboseOp line(op);
  const RowKernel* kernel =
      is_floating(x.dtype()) ? &select_row(op, RowOp::max, x.dtype()) : nullptr;
  const int64_t bytes = x.nbytes() + y.values.nbytes() + y.indices.nbytes();
  report(line, kernel ? kernel->name : "scan", x, bytes);
  const Along s = along(x, dim);
  int64_t* const indices = y.indices.out<int64_t>();
  constexpr int64_t kShort = 64;  // a row kernel goes over each row twice, for the place
  if (is_floating(x.dtype()) && goes_by_columns(s, kShort)) {
    const ColumnKernel& by_columns = select_column(op, ColumnOp::max, x.dtype());
    report(line, by_columns.name, x, bytes);
    for_each_column(s, itemsize(x.dtype()), x.data_ptr(), nullptr, nullptr,
                    [&](const ColumnData& c) {
                      by_columns.run({.rows = s.n,
                                      .n = c.count,
                                      .stride = c.stride,
                                      .x = c.x,
                                      .y = y.values.out_ptr(c.index),
                                      .index = indices + c.index});
                    });
    return y;
  }
  visit_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) {
    T* const values = y.values.out<T>();
    const auto max_of_rows = [&](const RowData& rows) {
      const T* from = static_cast<const T*>(rows.x);
      int64_t* const index = indices + rows.index;
      if (kernel) {
        double largest[kRowsAtOnce];  // room for any accumulator
        kernel->run({.n = s.n, .count = rows.count, .x = from, .out = largest, .index = index});
      }
      for (int64_t r = 0; r < rows.count; ++r, from += s.n) {
        if (!kernel) index[r] = std::max_element(from, from + s.n) - from;
        values[rows.index + r] = from[index[r]];
      }
    };
    for_each_row(s, itemsize(x.dtype()), x.data_ptr(), nullptr, nullptr, max_of_rows,
                 rows_at_once(s.n));
  });
  return y;
}

/// x as the op takes it, and the dimension from the front.
std::pair<Tensor, int> checked(std::string_view op, const Tensor& x, int64_t dim) {
  detail::check_dense(op, "x", x);
  check(x.dtype() != DType::boolean, op, "x: expected a numeric dtype, got {}", x);
  const int d = normalize_dim(op, dim, x.dim());
  check(x.shape()[d] > 0, op, "x: expected elements along dimension {}, got {}", d, x);
  return {raw::contiguous(x, x.format()), d};
}

Tensor without_dim(const Tensor& t, int dim, bool keepdim) {
  return keepdim ? t : raw::contiguous(raw::squeeze(t, dim));
}

}  // namespace

MaxResult max(const Tensor& input, int64_t dim, bool keepdim) {
  const auto [x, d] = checked("max", input, dim);
  const MaxResult kept = max_kept("max", x, d);
  MaxResult y{without_dim(kept.values, d, keepdim), without_dim(kept.indices, d, keepdim)};
  record("max", y.values, {input},
         [d = d, keepdim, shape = x.shape(), format = x.format(),
          indices = SavedTensor("max", kept.indices)](const Tensor& dy, Needs) -> Tensors {
           const Tensor kept_dy = keepdim ? dy : raw::unsqueeze(dy, d);
           return {scatter_along(shape, format, d, kept_dy, indices.get())};
         });
  return y;
}

Tensor argmax(const Tensor& input, int64_t dim, bool keepdim) {
  const auto [x, d] = checked("argmax", input, dim);
  return without_dim(max_kept("argmax", x, d).indices, d, keepdim);
}

}  // namespace quern
