#include "quern/ops/cat.h"

#include "quern/autograd/node.h"
#include "quern/ops/reshape.h"
#include "quern/tensor/check_dense.h"
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

  const Span span("cat");
  Tensor y = empty(shape, dtype, first.format());
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
