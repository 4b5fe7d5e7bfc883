#include "quern/ops/embedding.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/row_groups.h"
#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

/// dweight of shape [rows, columns], in f32 for bf16.
Tensor embedding_backward(const Tensor& dy, const Tensor& indices, int64_t rows, int64_t columns) {
  const Tensor dense = raw::contiguous(dy);
  const detail::RowGroups groups = detail::group_rows(indices, rows);
  const DType sums = dy.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor dweight = zeros({rows, columns}, sums);
  kernels::segment_sum(kernels::select_segment_sum(dy.dtype(), sums),
                       {.from = dense.data_ptr(),
                        .from_stride = columns,
                        .index = groups.places.data<int64_t>(),
                        .weight = nullptr,
                        .offsets = groups.offsets.data<int64_t>(),
                        .segments = groups.rows.numel(),
                        .to = dweight.out_ptr(),
                        .to_stride = columns,
                        .to_index = groups.rows.data<int64_t>(),
                        .width = columns,
                        .add = false});
  return dweight;
}

}  // namespace

Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<int64_t> padding_idx) {
  check(weight.defined() && weight.dim() == 2 && is_floating(weight.dtype()), "embedding",
        "weight: expected a floating tensor [V, D], got {}", weight);
  const int64_t rows = weight.size(0), columns = weight.size(1);
  if (padding_idx) {
    check(*padding_idx >= -rows && *padding_idx < rows, "embedding",
          "padding_idx: expected {}..{}, got {}", -rows, rows - 1, *padding_idx);
  }
  const Span span("embedding");
  const Tensor places = detail::check_indices("embedding", indices, rows);
  Shape shape = indices.shape();
  shape.push_back(columns);
  Tensor y = empty(shape, weight.dtype());
  const Tensor table = raw::contiguous(weight);
  const int64_t bytes = columns * itemsize(weight.dtype());
  kernels::copy_rows(kernels::select_row_copy(), {.from = table.data_ptr(),
                                                  .to = y.out_ptr(),
                                                  .from_index = places.data<int64_t>(),
                                                  .to_index = nullptr,
                                                  .n = places.numel(),
                                                  .from_stride = bytes,
                                                  .to_stride = bytes,
                                                  .bytes = bytes,
                                                  .stream = false});

  return record("embedding", y, {indices, weight},
                [=, places = SavedTensor("embedding", places)](const Tensor& dy, Needs) -> Tensors {
                  Tensor dweight = embedding_backward(dy, places.get(), rows, columns);
                  if (padding_idx) raw::fill_(raw::select(dweight, 0, *padding_idx), 0);
                  return {Tensor(), dweight};
                });
}

}  // namespace quern
