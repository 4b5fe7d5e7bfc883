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

/// What elements are compared as.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// a before b among the largest, or the smallest: NaN is larger than all, as in PyTorch.
template <bool largest, class W>
bool before(W a, W b) {
  if constexpr (!largest) return before<true>(b, a);
  else return a > b || (a != a && b == b);
}

/// May some of x[0..n-1] come before `last`? A loop without branches, for the vectoriser; NaN on
/// either side means yes.
template <bool largest, class T>
bool any_before(const T* x, int64_t n, Wide<T> last) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<Wide<T>>(x[i]);
    any |= largest ? !(v <= last) : !(v >= last);
  }
  return any != 0;
}

constexpr int64_t kFew = 32;

/// The places of the k <= kFew best of x[0..n-1], best first; of equals, the first.
template <bool largest, class T>
void rank_few(const T* x, int64_t n, int64_t k, int64_t* best) {
  // The best so far, in order. Most blocks of a row that is in no order hold none that is better.
  Wide<T> values[kFew];
  constexpr int64_t kBlock = 32;
  int64_t count = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = std::min(n, start + kBlock);
    if (count == k && !any_before<largest>(x + start, stop - start, values[k - 1])) continue;
    for (int64_t i = start; i < stop; ++i) {
      const auto v = static_cast<Wide<T>>(x[i]);
      if (count == k && !before<largest>(v, values[k - 1])) continue;
      if (count < k) ++count;
      int64_t at = count - 1;
      for (; at > 0 && before<largest>(v, values[at - 1]); --at)
        values[at] = values[at - 1], best[at] = best[at - 1];
      values[at] = v, best[at] = i;
    }
  }
}

/// The same of any k.
template <bool largest, class T>
void rank(const T* x, int64_t n, int64_t k, int64_t* best) {
  if (k <= kFew) return rank_few<largest>(x, n, k, best);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto at = [x](int64_t i) { return static_cast<Wide<T>>(x[i]); };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [=](int64_t i, int64_t j) {
    return before<largest>(at(i), at(j)) || (!before<largest>(at(j), at(i)) && i < j);
  });
  std::copy_n(order.begin(), k, best);
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
        int64_t few[kFew];
        std::vector<int64_t> many(k > kFew ? static_cast<size_t>(k) : 0);
        int64_t* const best = k > kFew ? many.data() : few;
        (largest ? rank<true, T> : rank<false, T>)(from, s.n, k, best);
        const int64_t first = row.index / s.inner * k * s.inner + row.index % s.inner;
        for (int64_t j = 0; j < k; ++j) {
          indices[first + j * s.inner] = best[j];
          values[first + j * s.inner] = from[best[j]];
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
