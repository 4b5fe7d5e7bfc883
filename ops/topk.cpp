#include "quern/ops/topk.h"

#include <algorithm>
#include <numeric>

#include "quern/autograd/node.h"
#include "quern/ops/detail/rows.h"
#include "quern/tensor/check_dense.h"
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

/// May some of x[0..n-1] come before `last`? A loop without branches, for the vectoriser; NaN on
/// either side means yes.
template <class T>
bool any_before(const T* x, int64_t n, T last, bool largest) {
  using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
  const Wide bound = static_cast<Wide>(last);
  int any = 0;
  if (largest)
    for (int64_t i = 0; i < n; ++i) any |= !(static_cast<Wide>(x[i]) <= bound);
  else
    for (int64_t i = 0; i < n; ++i) any |= !(static_cast<Wide>(x[i]) >= bound);
  return any != 0;
}

/// The places of the k best of x[0..n-1], best first; of equals, the first.
template <class T>
std::vector<int64_t> rank(const T* x, int64_t n, int64_t k, bool largest) {
  const auto before = [=](T a, T b) { return largest ? larger(a, b) : larger(b, a); };
  constexpr int64_t kFew = 32;
  if (k > kFew) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [=](int64_t i, int64_t j) {
      return before(x[i], x[j]) || (!before(x[j], x[i]) && i < j);
    });
    return order;
  }
  // The best so far, in order. Most blocks of a row that is in no order hold none that is better.
  std::vector<int64_t> best(static_cast<size_t>(k));
  constexpr int64_t kBlock = 32;
  int64_t count = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = std::min(n, start + kBlock);
    if (count == k && !any_before(x + start, stop - start, x[best.back()], largest)) continue;
    for (int64_t i = start; i < stop; ++i) {
      if (count == k && !before(x[i], x[best.back()])) continue;
      if (count < k) ++count;
      auto at = best.begin() + count - 1;
      for (; at != best.begin() && before(x[i], x[at[-1]]); --at) *at = at[-1];
      *at = i;
    }
  }
  return best;
}

}  // namespace

TopkResult topk(const Tensor& input, int64_t k, int64_t dim, bool largest, bool) {
  detail::check_dense("topk", "x", input);
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
        const std::vector<int64_t> order = rank(from, s.n, k, largest);
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
