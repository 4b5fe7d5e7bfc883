// Row-sparse tensors.
#include <algorithm>

#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"

namespace quern {

const RowSparse& Tensor::sparse() const {
  check(is_sparse(), "tensor", "tensor: expected a row-sparse one, got {}", *this);
  return *impl_->sparse;
}
const Tensor& Tensor::rows() const { return sparse().rows; }
const Tensor& Tensor::values() const { return sparse().values; }

void Tensor::throw_not_dense() const {
  if (!impl_) throw_undefined();
  fail("tensor",
       fmt::format("tensor: expected a dense one, got {}; to_dense() makes it", describe()));
}

Tensor sparse_rows(const Tensor& rows, const Tensor& values, int64_t size) {
  check(rows.defined() && rows.dtype() == DType::i64 && rows.dim() == 1 &&
            rows.is_dense_as(MemoryFormat::contiguous),
        "sparse_rows", "rows: expected a contiguous i64 tensor [n], got {}", rows);
  check(values.defined() && values.dim() >= 1 && values.size(0) == rows.numel() &&
            is_floating(values.dtype()),
        "sparse_rows", "values: expected a floating tensor of {} rows, got {}", rows.numel(),
        values);
  const int64_t* row = rows.data<int64_t>();
  for (int64_t i = 0, least = 0; i < rows.numel(); least = row[i++] + 1)
    check(row[i] >= least && row[i] < size, "sparse_rows",
          "rows: expected rising numbers in 0..{}, got {} as element {}", size - 1, row[i], i);

  Tensor t;
  Shape shape = values.shape();
  shape[0] = size;
  t.impl_ = std::allocate_shared<Tensor::Impl>(
      CachedAllocator<Tensor::Impl>(),
      Tensor::Impl{nullptr,
                   shape,
                   {},
                   0,
                   numel(shape),
                   values.dtype(),
                   nullptr,
                   std::make_shared<RowSparse>(RowSparse{rows, values})});
  return t;
}

Tensor Tensor::to_dense() const {
  if (!is_sparse()) return *this;
  Tensor all = zeros(shape(), dtype());
  const Tensor kept = raw::contiguous(values());
  const int64_t* row = rows().data<int64_t>();
  const int64_t bytes = kept.numel() > 0 ? kept.nbytes() / kept.size(0) : 0;
  const auto* from = static_cast<const std::byte*>(kept.data_ptr());
  auto* to = static_cast<std::byte*>(all.out_ptr());
  parallel_chunks(rows().numel(), 64, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(from + i * bytes, bytes, to + row[i] * bytes);
  });
  return all;
}

}  // namespace quern
