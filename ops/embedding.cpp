#include "quern/ops/embedding.h"

#include <algorithm>
#include <numeric>

#include "quern/autograd/node.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

constexpr int64_t kRows = 16;  // a cell of the parallel loops

/// out[i, :] = weight[indices[i], :]; rows of `row` bytes.
void gather_rows(std::byte* out, const std::byte* weight, const int64_t* indices, int64_t n,
                 int64_t row) {
  parallel_chunks(n, kRows, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::copy_n(weight + indices[i] * row, row, out + i * row);
  });
}

/// dweight[v, :] += Σ dy[i, :] over the i with indices[i] = v, in rising order, whatever the
/// threads: the places are sorted by row, and each row of dweight belongs to one cell.
template <class T, class Sum>
void scatter_rows(Sum* dweight, const T* dy, const int64_t* indices, int64_t n, int64_t rows,
                  int64_t columns) {
  std::vector<int64_t> places(static_cast<size_t>(n));
  std::iota(places.begin(), places.end(), 0);
  const auto row_of = [=](int64_t place) { return indices[place]; };
  std::ranges::stable_sort(places, {}, row_of);
  parallel_chunks(rows, kRows, [&](int64_t begin, int64_t end) {
    for (auto place = std::ranges::lower_bound(places, begin, {}, row_of);
         place != places.end() && row_of(*place) < end; ++place) {
      Sum* sum = dweight + row_of(*place) * columns;
      const T* part = dy + *place * columns;
      for (int64_t c = 0; c < columns; ++c) sum[c] += static_cast<Sum>(part[c]);
    }
  });
}

/// dweight of shape [rows, columns], in f32 for bf16.
Tensor embedding_backward(const Tensor& dy, const Tensor& indices, int64_t rows, int64_t columns) {
  const Tensor dense = raw::contiguous(dy);
  return visit_floating("embedding", dy.dtype(), [&]<class T>(std::type_identity<T>) {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Tensor dweight = zeros({rows, columns}, dtype_of<Sum>);
    scatter_rows(dweight.out<Sum>(), dense.data<T>(), indices.data<int64_t>(), indices.numel(),
                 rows, columns);
    return dweight;
  });
}

}  // namespace

Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<int64_t> padding_idx) {
  check(indices.defined() && indices.dtype() == DType::i64, "embedding",
        "indices: expected an i64 tensor, got {}", indices);
  check(weight.defined() && weight.dim() == 2 && is_floating(weight.dtype()), "embedding",
        "weight: expected a floating tensor [V, D], got {}", weight);
  const int64_t rows = weight.size(0), columns = weight.size(1);
  if (padding_idx) {
    check(*padding_idx >= -rows && *padding_idx < rows, "embedding",
          "padding_idx: expected {}..{}, got {}", -rows, rows - 1, *padding_idx);
  }
  const Span span("embedding");
  const Tensor places = raw::contiguous(indices);
  const int64_t* index = places.data<int64_t>();
  for (int64_t i = 0; i < places.numel(); ++i)
    check(index[i] >= 0 && index[i] < rows, "embedding",
          "indices: expected 0..{}, got {} as element {}", rows - 1, index[i], i);

  Shape shape = indices.shape();
  shape.push_back(columns);
  Tensor y = empty(shape, weight.dtype());
  const Tensor table = raw::contiguous(weight);
  gather_rows(static_cast<std::byte*>(y.out_ptr()), static_cast<const std::byte*>(table.data_ptr()),
              index, places.numel(), columns * itemsize(weight.dtype()));

  return record("embedding", y, {indices, weight},
                [=, places = SavedTensor("embedding", places)](const Tensor& dy, Needs) -> Tensors {
                  Tensor dweight = embedding_backward(dy, places.get(), rows, columns);
                  if (padding_idx) raw::fill_(raw::select(dweight, 0, *padding_idx), 0);
                  return {Tensor(), dweight};
                });
}

}  // namespace quern
