#include <algorithm>
#include <optional>

#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/rows.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/kernels/elementwise/elementwise.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/storage.h"

namespace quern::raw {
namespace {

using detail::Along;
using namespace kernels;

constexpr int64_t kPart = 1 << 14;  // values of f that are summed at once, out of L1 or L2

/// How t is summed to `shape` if that takes dimensions that are neighbours in memory.
std::optional<Along> block_of(const Tensor& t, const Shape& shape) {
  const MemoryFormat format = t.format();
  if (!t.is_dense_as(format) || t.dim() != shape.size() || t.numel() == 0) return {};
  Along block{1, 1, 1};
  for (int i = 0; i < t.dim(); ++i) {
    const int d = dimension_at(i, format);
    const int64_t size = t.shape()[d];
    const bool goes = size != shape[d];
    if (goes && block.inner > 1) return {};
    int64_t& part = goes ? block.n : block.n > 1 ? block.inner : block.outer;
    part *= size;
  }
  return block;
}

/// [outer][inner] sums of f over n. Parts of n are as long as the shape tells, and summed in turn.
Tensor summed(std::string_view op, Binary f, const Tensor& a, const Tensor& b, const Along& block) {
  const DType dtype = a.dtype(), total = accumulator(dtype);
  const auto [outer, n, inner] = block;
  const int64_t size = std::clamp<int64_t>(kPart / inner, 1, n), parts = ceil_div(n, size);
  const BinaryKernel& values_of = select_binary(op, f, dtype);
  const RowKernel& add = select_row(op, inner == 1 ? RowOp::sum : RowOp::sum_rows, dtype);
  const Tensor sums = empty({outer, parts, inner}, total);
  // Rows that are short go to the kernels together.
  const int64_t cells = outer * parts, at_once = inner == 1 && parts == 1 ? rows_at_once(n) : 1;
  const int64_t group = std::max<int64_t>(1, kPart / (at_once * size * inner));
  parallel_chunks(ceil_div(cells, at_once), group, [&](int64_t begin, int64_t end) {
    const Workspace values(at_once * size * inner * itemsize(dtype));
    for (int64_t cell = begin * at_once; cell < std::min(end * at_once, cells); cell += at_once) {
      const int64_t count = std::min(at_once, cells - cell);
      const int64_t first = cell % parts * size, rows = std::min(size, n - first);
      const int64_t place = (cell / parts * n + first) * inner;
      values_of.run(count * rows * inner, a.data_ptr(place), b.data_ptr(place),
                    values.as<std::byte>(), Run::dense_dense, 0, 0);
      Row row{.n = inner == 1 ? rows : inner, .count = count};
      row.x = values.as<std::byte>(), row.out = sums.out_ptr(cell * inner);
      row.rows = rows, row.stride = inner;
      add.run(row);
    }
  });
  return parts == 1 ? sums : sum(op, sums, {1}, false);
}

}  // namespace

Tensor sum_to(std::string_view op, Binary f, const Tensor& a, const Tensor& b, const Shape& shape) {
  const bool alike = a.shape() == b.shape() && a.dtype() == b.dtype() && a.format() == b.format() &&
                     a.shape() != shape && b.is_dense_as(b.format());
  const std::optional<Along> block = alike ? block_of(a, shape) : std::nullopt;
  if (!block) return sum_to(binary(op, f, a, b), shape);
  const Tensor sums = summed(op, f, a, b, *block);
  return as_strided(sums, shape, dense_strides(shape, a.format()), sums.offset());
}

}  // namespace quern::raw
