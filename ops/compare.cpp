#include "quern/ops/compare.h"

#include <cmath>

#include "quern/autograd/node.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/sum.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

using kernels::Comparison;

Tensor with_number(std::string_view op, Comparison f, const Tensor& a, double b) {
  detail::check_dense(op, "a", a);
  if (is_floating(a.dtype())) return raw::compare(op, f, a, full({}, b, a.dtype()));
  if (std::trunc(b) == b && b >= -0x1p63 && b < 0x1p63)
    return raw::compare(op, f, a,
                        raw::reshape(from_vector<int64_t>({static_cast<int64_t>(b)}), {}));
  // A fraction, which f64 tells from any integer, or a number beyond all of them.
  return raw::compare(op, f, a, full({}, std::abs(b) > 0x1p62 ? b * 2 : b, DType::f64));
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return raw::compare("eq", Comparison::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return raw::compare("ne", Comparison::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return raw::compare("lt", Comparison::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return raw::compare("le", Comparison::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return raw::compare("gt", Comparison::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return raw::compare("ge", Comparison::ge, a, b); }
Tensor eq(const Tensor& a, double b) { return with_number("eq", Comparison::eq, a, b); }
Tensor ne(const Tensor& a, double b) { return with_number("ne", Comparison::ne, a, b); }
Tensor lt(const Tensor& a, double b) { return with_number("lt", Comparison::lt, a, b); }
Tensor le(const Tensor& a, double b) { return with_number("le", Comparison::le, a, b); }
Tensor gt(const Tensor& a, double b) { return with_number("gt", Comparison::gt, a, b); }
Tensor ge(const Tensor& a, double b) { return with_number("ge", Comparison::ge, a, b); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor y = raw::where("where", condition, a, b);
  return record("where", y, {a, b},
                [condition = SavedTensor("where", condition), a = a.shape(), b = b.shape()](
                    const Tensor& dy, Needs needs) -> Tensors {
                  const Tensor zero = zeros({}, dy.dtype()), chosen = condition.get();
                  return {
                      needs[0] ? raw::sum_to(raw::where("where", chosen, dy, zero), a) : Tensor(),
                      needs[1] ? raw::sum_to(raw::where("where", chosen, zero, dy), b) : Tensor()};
                });
}

}  // namespace quern
