#include "quern/ops/flatten.h"

#include "quern/ops/reshape.h"
#include "quern/tensor/check_dense.h"

namespace quern {

Tensor flatten(const Tensor& x, int64_t start, int64_t end) {
  detail::check_dense("flatten", "x", x);
  if (x.dim() == 0) return reshape(x, {1});
  const int first = normalize_dim("flatten", start, x.dim());
  const int last = normalize_dim("flatten", end, x.dim());
  check(first <= last, "flatten", "start: expected at most end ({}), got {}", last, first);
  Shape shape;
  for (int d = 0; d < x.dim(); ++d) {
    if (d > first && d <= last) {
      shape[first] *= x.shape()[d];
    } else {
      shape.push_back(x.shape()[d]);
    }
  }
  return reshape(x, shape);
}

}  // namespace quern
