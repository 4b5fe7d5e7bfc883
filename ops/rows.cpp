#include "quern/ops/rows.h"

#include "quern/ops/detail/row_groups.h"
#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/ops/kernels/round/by_chance.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

/// Returns the indices, contiguous.
Tensor check_operands(std::string_view op, const Tensor& table, const Tensor& indices,
                      const Tensor& rows, std::string_view name, const Tensor& written) {
  check(table.defined() && table.dim() == 2, op, "table: expected a tensor [V, D], got {}", table);
  detail::check_dense(op, "table", table);
  Tensor dense = detail::check_indices(op, indices, table.size(0));
  check(indices.dim() == 1, op, "indices: expected one dimension, got {}", indices);
  const Shape shape{indices.numel(), table.size(1)};
  check(rows.defined() && rows.shape() == shape && rows.dtype() == table.dtype(), op,
        "{}: expected {} {}, got {}", name, table.dtype(), shape, rows);
  detail::check_dense(op, name, rows);
  raw::check_writable(op, written, written.is_same(table) ? "table" : name);
  check(!raw::overlap(table, rows), op, "{}: expected memory of its own, got the table's", name);
  check(!raw::may_overlap(written, dense), op, "indices: expected memory of their own");
  return dense;
}

bool adjacent(const Tensor& t) { return t.size(1) == 1 || t.stride(1) == 1; }

/// f(a, b), or f of each of their columns.
template <class F>
void with_adjacent_elements(const Tensor& a, const Tensor& b, const F& f) {
  if (adjacent(a) && adjacent(b)) return f(a, b);
  for (int64_t c = 0; c < a.size(1); ++c) f(raw::slice(a, 1, c, c + 1), raw::slice(b, 1, c, c + 1));
}

int64_t row_bytes(const Tensor& t) { return t.stride(0) * itemsize(t.dtype()); }

/// to[to_index[i], :] = from[from_index[i], :]; null: row i.
void copy(const Tensor& from, const int64_t* from_index, const Tensor& to, const int64_t* to_index,
          int64_t n) {
  with_adjacent_elements(from, to, [&](const Tensor& a, const Tensor& b) {
    kernels::copy_rows(kernels::select_row_copy(), {.from = a.data_ptr(),
                                                    .to = b.out_ptr(),
                                                    .from_index = from_index,
                                                    .to_index = to_index,
                                                    .n = n,
                                                    .from_stride = row_bytes(a),
                                                    .to_stride = row_bytes(b),
                                                    .bytes = a.size(1) * itemsize(a.dtype())});
  });
}

Tensor rounded_by_chance(const Tensor& x, DType dtype, Generator& generator) {
  const Tensor from = raw::contiguous(x), y = empty(x.shape(), dtype);
  const auto& kernel = kernels::select_by_chance("scatter_rows_by_chance", dtype);
  const uint64_t seed = generator.seed(), stream = generator.next_stream();
  parallel_chunks(x.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    kernel.run({from.data<float>() + begin, y.out_ptr(begin), begin, end - begin, seed, stream});
  });
  return y;
}

}  // namespace

void gather_rows(const Tensor& table, const Tensor& indices, const Tensor& out) {
  const Tensor index = check_operands("gather_rows", table, indices, out, "out", out);
  const Span span("gather_rows");
  const InPlaceChange change(out.storage());
  copy(table, index.data<int64_t>(), out, nullptr, index.numel());
}

void scatter_rows(const Tensor& table, const Tensor& indices, const Tensor& rows) {
  const Tensor index = check_operands("scatter_rows", table, indices, rows, "rows", table);
  const Span span("scatter_rows");
  const detail::LastPlaces last = detail::last_places(index, table.size(0));
  const int64_t n = last.rows.numel();
  const InPlaceChange change(table.storage());
  copy(rows, n == index.numel() ? nullptr : last.places.data<int64_t>(), table,
       last.rows.data<int64_t>(), n);
}

void scatter_rows_by_chance(const Tensor& table, const Tensor& indices, const Tensor& rows,
                            Generator& generator) {
  constexpr std::string_view op = "scatter_rows_by_chance";
  check(table.defined() && (table.dtype() == DType::bf16 || table.dtype() == DType::f16), op,
        "table: expected bf16 or f16, got {}", table);
  check(rows.defined() && rows.dtype() == DType::f32, op, "rows: expected f32, got {}", rows);
  scatter_rows(table, indices, rounded_by_chance(rows, table.dtype(), generator));
}

void scatter_add_rows(const Tensor& table, const Tensor& indices, const Tensor& rows) {
  const Tensor index = check_operands("scatter_add_rows", table, indices, rows, "rows", table);
  check(is_floating(table.dtype()), "scatter_add_rows", "table: expected a floating dtype, got {}",
        table.dtype());
  const Span span("scatter_add_rows");
  const detail::RowGroups groups = detail::group_in_order(index, table.size(0));
  const InPlaceChange change(table.storage());
  with_adjacent_elements(rows, table, [&](const Tensor& from, const Tensor& to) {
    kernels::segment_sum(kernels::select_segment_sum(from.dtype(), to.dtype()),
                         {.from = from.data_ptr(),
                          .from_stride = from.stride(0),
                          .index = groups.places.data<int64_t>(),
                          .offsets = groups.offsets.data<int64_t>(),
                          .segments = groups.rows.numel(),
                          .to = to.out_ptr(),
                          .to_stride = to.stride(0),
                          .to_index = groups.rows.data<int64_t>(),
                          .width = from.size(1),
                          .add = true});
  });
}

}  // namespace quern
