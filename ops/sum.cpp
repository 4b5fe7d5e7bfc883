#include "quern/ops/sum.h"

#include <algorithm>
#include <bitset>

#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/rows.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/verbose.h"

namespace quern {
namespace {

using namespace detail;
using namespace kernels;
using Mask = std::bitset<kMaxDims>;

constexpr int64_t kRow = 1 << 16;      // elements of a row that one call sums
constexpr int64_t kRows = 256;         // rows that one call adds up, each column one by one
constexpr int64_t kColumns = 1 << 12;  // of as many columns
constexpr int64_t kGrain = 1 << 15;    // elements of a cell

DType total_dtype(DType dtype) { return is_floating(dtype) ? accumulator(dtype) : DType::i64; }

Mask reduced_dims(std::string_view op, const Tensor& x, const Dims& dims) {
  check_dense(op, "x", x);
  Mask mask;
  for (int64_t dim : dims) {
    const auto d = static_cast<size_t>(normalize_dim(op, dim, x.dim()));
    check(!mask[d], op, "dims: expected each dimension once, got {}", dims);
    mask.set(d);
  }
  return dims.empty() ? ~Mask() : mask;
}

Shape keepdim_shape(const Tensor& x, const Mask& reduced) {
  Shape shape = x.shape();
  for (int d = 0; d < shape.size(); ++d)
    if (reduced[static_cast<size_t>(d)]) shape[d] = 1;
  return shape;
}

/// Modulo 2^64.
void sum_integers(const Tensor& t, const Along& s, int64_t* sums) {
  const auto* x = static_cast<const uint64_t*>(t.data_ptr());
  auto* y = reinterpret_cast<uint64_t*>(sums);
  std::fill_n(y, s.outer * s.inner, 0);
  for (int64_t o = 0; o < s.outer; ++o)
    for (int64_t k = 0; k < s.n; ++k, x += s.inner)
      for (int64_t i = 0; i < s.inner; ++i) y[o * s.inner + i] += x[i];
}

/// [outer][inner] sums over n in total_dtype(). Long sums are cut into parts by length alone, and
/// the parts' sums summed in turn.
Tensor sum_along(std::string_view op, const Tensor& x, const Along& s) {
  const DType dtype = x.dtype(), total = total_dtype(dtype);
  if (s.n == 0 || dtype == DType::i64) {
    Tensor y = zeros({s.outer * s.inner}, total);
    if (s.n > 0) sum_integers(x, s, y.out<int64_t>());
    return y;
  }
  const bool row = s.inner == 1;
  const int64_t part = row ? kRow : kRows, parts = (s.n + part - 1) / part;
  const int64_t strip = row ? 1 : std::min(s.inner, kColumns);
  const int64_t strips = (s.inner + strip - 1) / strip;
  const bool by_columns = row && goes_by_columns(s, kShortRow);
  const RowKernel& kernel =
      select_row(op, row && !by_columns ? RowOp::sum : RowOp::sum_rows, dtype);
  VerboseOp line(op);
  if (line)
    line.set(kernel.name, to_string({s.outer, s.n, s.inner}), std::string(to_string(dtype)));
  const Tensor y = empty({s.outer * parts * s.inner}, total);
  if (line) line.set_work(0, x.nbytes() + y.nbytes());
  if (by_columns) {
    for_each_column(s, itemsize(dtype), x.data_ptr(), nullptr, nullptr, [&](const ColumnData& c) {
      kernel.run(
          {.n = c.count, .x = c.x, .out = y.out_ptr(c.index), .rows = s.n, .stride = c.stride});
    });
    return y;
  }
  const int64_t group = std::max<int64_t>(1, kGrain / (std::min(s.n, part) * strip));
  const int64_t at_once = row && parts == 1 ? rows_at_once(s.n) : 1;
  parallel_chunks(s.outer * parts * strips, group, [&](int64_t begin, int64_t end) {
    for (int64_t cell = begin; cell < end; cell += at_once) {
      const int64_t o = cell / (parts * strips), first = cell / strips % parts * part;
      const int64_t column = cell % strips * strip;
      const int64_t count = std::min(part, s.n - first);
      Row r{.n = row ? count : std::min(strip, s.inner - column)};
      r.x = x.data_ptr((o * s.n + first) * s.inner + column);
      r.out = y.out_ptr(cell / strips * s.inner + column);
      r.rows = count, r.stride = s.inner, r.count = std::min(at_once, end - cell);
      kernel.run(r);
    }
  });
  return parts == 1 ? y : sum_along(op, y, {s.outer, parts, s.inner});
}

/// Σ x in total_dtype(), reduced dimensions kept, in x's format.
Tensor sum_kept(std::string_view op, const Tensor& t, const Mask& reduced) {
  Tensor x = is_floating(t.dtype()) ? t : raw::to(t, DType::i64);
  x = raw::contiguous(x, t.format());
  const MemoryFormat format = x.format();
  const Shape kept = keepdim_shape(x, reduced);

  // From the innermost dimension out, neighbours that are reduced go in one step.
  Tensor y = x;
  int64_t outer = x.numel(), inner = 1;
  bool empty_sum = x.numel() == 0;
  for (int i = x.dim() - 1; i >= 0 && !empty_sum;) {
    const auto size = [&](int k) { return x.shape()[dimension_at(k, format)]; };
    const auto goes = [&](int k) { return reduced[static_cast<size_t>(dimension_at(k, format))]; };
    if (!goes(i)) {
      outer /= size(i), inner *= size(i), --i;
      continue;
    }
    int64_t n = 1;
    for (; i >= 0 && goes(i); --i) n *= size(i);
    outer /= n;
    if (n > 1 || y.dtype() != total_dtype(y.dtype())) y = sum_along(op, y, {outer, n, inner});
  }
  if (empty_sum) y = zeros({numel(kept)}, total_dtype(x.dtype()));
  y = raw::to(y, total_dtype(x.dtype()));
  return raw::as_strided(y, kept, dense_strides(kept, format), y.offset());
}

/// `kept` as the caller wants it; x's own memory where there was nothing to add up.
Tensor finish(const Tensor& kept, const Mask& reduced, bool keepdim, DType dtype) {
  Tensor y = raw::to(kept, dtype);
  if (keepdim) return y;
  for (int d = kept.dim() - 1; d >= 0; --d)
    if (reduced[static_cast<size_t>(d)]) y = raw::squeeze(y, d);
  return raw::contiguous(y);
}

/// dy, of the reduced shape, for every element of the shape that was summed.
Tensor spread(const Tensor& dy, const Shape& kept, const Shape& shape) {
  return raw::expand(raw::reshape(dy, kept), shape);
}

}  // namespace

namespace raw {

Tensor sum(std::string_view op, const Tensor& x, const Dims& dims, bool keepdim) {
  const Mask reduced = reduced_dims(op, x, dims);
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : DType::i64;
  const Tensor y = finish(sum_kept(op, x, reduced), reduced, keepdim, dtype);
  return y.storage() == x.storage() ? clone(y) : y;
}

Tensor sum_to(const Tensor& t, const Shape& shape) {
  if (t.shape() == shape) return t;
  const int lead = t.dim() - shape.size();
  Mask reduced;
  for (int d = 0; d < t.dim(); ++d)
    if (d < lead || shape[d - lead] != t.shape()[d]) reduced.set(static_cast<size_t>(d));
  return reshape(sum_kept("sum_to", t, reduced), shape);
}

}  // namespace raw

Tensor sum(const Tensor& x) { return sum(x, Dims(), false); }
Tensor mean(const Tensor& x) { return mean(x, Dims(), false); }

Tensor sum(const Tensor& input, const Dims& dims, bool keepdim) {
  const Tensor x = autocast::widen(input);
  Tensor y = raw::sum("sum", x, dims, keepdim);
  const Shape kept = keepdim_shape(x, reduced_dims("sum", x, dims));
  return record("sum", y, {x}, [kept, shape = x.shape()](const Tensor& dy, Needs) -> Tensors {
    return {spread(dy, kept, shape)};
  });
}

Tensor mean(const Tensor& input, const Dims& dims, bool keepdim) {
  const Tensor x = autocast::widen(input);
  const Mask reduced = reduced_dims("mean", x, dims);
  check(is_floating(x.dtype()), "mean", "x: expected bf16, f32 or f64, got {}", x);
  const Shape kept = keepdim_shape(x, reduced);
  double count = 1;
  for (int d = 0; d < x.dim(); ++d)
    if (reduced[static_cast<size_t>(d)]) count *= static_cast<double>(x.shape()[d]);
  const Tensor total = sum_kept("mean", x, reduced);
  Tensor y = finish(raw::binary("mean", Binary::div, total, count), reduced, keepdim, x.dtype());
  return record("mean", y, {x},
                [kept, count, shape = x.shape()](const Tensor& dy, Needs) -> Tensors {
                  return {spread(raw::binary("mean", Binary::div, dy, count), kept, shape)};
                });
}

}  // namespace quern
