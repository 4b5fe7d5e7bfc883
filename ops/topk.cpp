#include "quern/ops/topk.h"

#include <algorithm>
#include <numeric>

#include "quern/autograd/node.h"
#include "quern/ops/detail/rows.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

using namespace detail;

/// a before b among the largest: NaN first, as in PyTorch.
template <class T>
bool larger(T a, T b) {
  return a > b || (a != a && b == b);
}

/// The places of the k best of x[0..n-1] go to the front of `order`.
template <class T>
void rank(const T* x, int64_t k, bool largest, std::vector<int64_t>& order) {
  std::iota(order.begin(), order.end(), int64_t{0});
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [=](int64_t i, int64_t j) {
    const bool before = largest ? larger(x[i], x[j]) : larger(x[j], x[i]);
    const bool after = largest ? larger(x[j], x[i]) : larger(x[i], x[j]);
    return before || (!after && i < j);
  });
}

}  // namespace

TopkResult topk(const Tensor& input, int64_t k, int64_t dim, bool largest, bool) {
  check(input.defined(), "topk", "x: expected a defined tensor, got undefined");
  check(input.dtype() != DType::boolean, "topk", "x: expected a numeric dtype, got {}", input);
  const int d = normalize_dim("topk", dim, input.dim());
  const Span span("topk");
  const Tensor x = raw::contiguous(input, input.format());
  check(k >= 0 && k <= x.shape()[d], "topk", "k: expected 0..{}, got {}; x {}", x.shape()[d], k, x);
  Shape shape = x.shape();
  shape[d] = k;
  TopkResult y{empty(shape, x.dtype(), x.format()), empty(shape, DType::i64, x.format())};

  const Along s = along(x, d);
  if (y.values.numel() > 0)
    visit_dtype(x.dtype(), [&]<class T>(std::type_identity<T>) {
      T* values = y.values.out<T>();
      int64_t* indices = y.indices.out<int64_t>();
      for_each_row(s, itemsize(x.dtype()), x.data_ptr(), nullptr, nullptr, [&](const RowData& row) {
        const T* from = static_cast<const T*>(row.x);
        std::vector<int64_t> order(static_cast<size_t>(s.n));
        rank(from, k, largest, order);
        const int64_t first = row.index / s.inner * k * s.inner + row.index % s.inner;
        for (int64_t j = 0; j < k; ++j) {
          indices[first + j * s.inner] = order[static_cast<size_t>(j)];
          values[first + j * s.inner] = from[order[static_cast<size_t>(j)]];
        }
      });
    });
  record("topk", y.values, {input},
         [d, shape = x.shape(), format = x.format(), indices = SavedTensor("topk", y.indices)](
             const Tensor& dy, Needs) -> Tensors {
           return {scatter_along(shape, format, d, dy, indices.get())};
         });
  return y;
}

}  // namespace quern
