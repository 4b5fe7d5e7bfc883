#include "quern/ops/cat.h"

#include <algorithm>

#include "quern/autograd/node.h"
#include "quern/ops/kernels/blocking.h"
#include "quern/ops/reshape.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/convert.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

void check_operands(std::string_view op, const Tensors& tensors) {
  check(!tensors.empty(), op, "tensors: expected at least one, got none");
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!tensors[i].defined() || tensors[i].is_sparse())
      detail::check_dense(op, fmt::format("tensor {}", i), tensors[i]);
}

/// x's shape with `dim` cut down to nothing: what tensors to be joined along it have in common.
Shape without_size(const Tensor& x, int dim) {
  Shape shape = x.shape();
  if (dim < shape.size()) shape[dim] = 0;
  return shape;
}

/// Rows of y along `d` that are short, part by part, some rows at a time: their lines, which parts
/// share, stay in a cache until they are whole; or bypass the caches, where each part has lines of
/// its own and L3 hardly holds y. Returns false where rows are long.
bool join_short_rows(const Tensors& parts, const Tensor& y, int d) {
  constexpr int64_t kShort = 4096, kAtOnce = int64_t{16} << 10;  // bytes
  const int64_t column = y.stride(d) * itemsize(y.dtype()), row = y.size(d) * column;
  const bool alike = std::ranges::all_of(parts, [&](const Tensor& part) {
    return part.dtype() == y.dtype() && part.is_dense_as(y.format());
  });
  if (!alike || row == 0 || row > kShort) return false;
  const bool streams = std::ranges::all_of(parts, [&](const Tensor& part) {
    return kernels::cache::bypassed(y.data_ptr(), y.nbytes(), part.size(d) * column,
                                    kernels::cache::read_at_once());
  });
  // What is little is one cell, which other threads are not worth waking for.
  const int64_t at_once = y.nbytes() <= 8 * kAtOnce ? y.nbytes() : kAtOnce;
  parallel_chunks(
      y.nbytes() / row, std::max<int64_t>(1, at_once / row), [&](int64_t begin, int64_t end) {
        std::byte* to = static_cast<std::byte*>(y.out_ptr()) + begin * row;
        for (const Tensor& part : parts) {
          const int64_t bytes = part.size(d) * column;
          if (bytes == 0) continue;
          const auto* from = static_cast<const std::byte*>(part.data_ptr()) + begin * bytes;
          (streams ? detail::stream_rows : detail::copy_rows)(to, row, from, bytes, end - begin,
                                                              bytes);
          to += bytes;
        }
      });
  return true;
}

}  // namespace

Tensor cat(const Tensors& tensors, int64_t dim) {
  check_operands("cat", tensors);
  const Tensor& first = tensors[0];
  check(first.dim() > 0, "cat", "tensor 0: expected at least one dimension, got {}", first);
  const int d = normalize_dim("cat", dim, first.dim());
  Shape shape = without_size(first, d);
  DType dtype = first.dtype();
  std::vector<int64_t> ends;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    check(without_size(x, d) == without_size(first, d), "cat",
          "tensor {}: expected the sizes of {} except along dimension {}, got {}", i, first, d, x);
    dtype = promote(dtype, x.dtype());
    shape[d] += x.size(d);
    ends.push_back(shape[d]);
  }

  Span span("cat");
  Tensor y = empty(shape, dtype, first.format());
  if (join_short_rows(tensors, y, d)) span.set_work(0, 2 * y.nbytes());
  else
    for (size_t i = 0; i < tensors.size(); ++i)
      raw::copy_(raw::slice(y, d, ends[i] - tensors[i].size(d), ends[i]), tensors[i]);
  if (!is_floating(dtype)) return y;

  return record(
      "cat", std::move(y), tensors,
      [d, ends](const Tensor& dy, Needs) -> Tensors {
        Tensors parts;
        int64_t start = 0;
        for (const int64_t end : ends) {
          parts.push_back(raw::slice(dy, d, start, end));
          start = end;
        }
        return parts;
      },
      GradDType::any);
}

Tensor stack(const Tensors& tensors, int64_t dim) {
  check_operands("stack", tensors);
  const int d = normalize_dim("stack", dim, tensors[0].dim() + 1);
  Tensors rows;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check(tensors[i].shape() == tensors[0].shape(), "stack", "tensor {}: expected shape {}, got {}",
          i, tensors[0].shape(), tensors[i]);
    rows.push_back(unsqueeze(tensors[i], d));
  }
  return cat(rows, d);
}

}  // namespace quern
