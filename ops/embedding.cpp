#include "quern/ops/embedding.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/lookup.h"
#include "quern/ops/detail/row_groups.h"
#include "quern/ops/kernels/lookup/lookup.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {

Tensor embedding(const Tensor& indices, const Tensor& weight, const EmbeddingOptions& options) {
  const auto padding = detail::check_table("embedding", weight, options);
  const int64_t rows = weight.size(0), columns = weight.size(1);
  const Tensor places = detail::check_indices("embedding", indices, rows);
  const Span span("embedding");
  if (options.max_norm) detail::renorm_rows_(weight, places, *options.max_norm, options.norm_type);

  Shape shape = indices.shape();
  shape.push_back(columns);
  Tensor y = empty(shape, weight.dtype());
  const Tensor table = columns == 1 || weight.stride(1) == 1 ? weight : raw::contiguous(weight);
  const int64_t size = itemsize(weight.dtype());
  kernels::copy_rows(kernels::select_row_copy(), {.from = table.data_ptr(),
                                                  .to = y.out_ptr(),
                                                  .from_index = places.data<int64_t>(),
                                                  .n = places.numel(),
                                                  .from_stride = table.stride(0) * size,
                                                  .to_stride = columns * size,
                                                  .bytes = columns * size});

  return record("embedding", y, {indices, weight},
                [=, places = SavedTensor("embedding", places)](const Tensor& dy, Needs) -> Tensors {
                  return {Tensor(), detail::table_gradient(
                                        {.indices = places.get(),
                                         .dy = raw::reshape(dy, {places.get().numel(), columns}),
                                         .source = {},
                                         .weight = {},
                                         .rows = rows,
                                         .padding = padding,
                                         .scale_by_freq = options.scale_grad_by_freq,
                                         .sparse = options.sparse})};
                });
}

Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<int64_t> padding_idx) {
  return embedding(indices, weight, EmbeddingOptions{.padding_idx = padding_idx});
}

}  // namespace quern
