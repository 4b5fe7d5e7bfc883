#include "quern/ops/slice.h"

#include "quern/autograd/node.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

/// Records y = view(x).
template <class View>
Tensor record_part(std::string_view op, const Tensor& x, View view) {
  Tensor y = view(x);
  return record(
      op, std::move(y), {x},
      [=, shape = x.shape(), format = x.format()](const Tensor& dy, Needs) -> Tensors {
        Tensor dx = zeros(shape, dy.dtype(), format);
        raw::copy_(view(dx), dy);
        return {dx};
      },
      GradDType::any);
}

}  // namespace

Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  return record_part("slice", x,
                     [=](const Tensor& t) { return raw::slice(t, dim, start, end, step); });
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  detail::check_dense("narrow", "x", x);
  const int d = normalize_dim("narrow", dim, x.dim());
  check(start >= 0 && length >= 0 && start <= x.size(d) && length <= x.size(d) - start, "narrow",
        "length: expected start and length within the {} elements of dimension {}, got {} and {}",
        x.size(d), d, start, length);
  return record_part("narrow", x,
                     [=](const Tensor& t) { return raw::slice(t, d, start, start + length); });
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  return record_part("select", x, [=](const Tensor& t) { return raw::select(t, dim, index); });
}

}  // namespace quern
