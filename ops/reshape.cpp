#include "quern/ops/reshape.h"

#include "quern/autograd/node.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

Tensor record_reshape(std::string_view op, Tensor y, const Tensor& x) {
  return record(
      op, std::move(y), {x},
      [shape = x.shape()](const Tensor& dy, Needs) -> Tensors { return {raw::reshape(dy, shape)}; },
      GradDType::any);
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  return record_reshape("reshape", raw::reshape(x, shape), x);
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  return record_reshape("squeeze", raw::squeeze(x, dim), x);
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  return record_reshape("unsqueeze", raw::unsqueeze(x, dim), x);
}

}  // namespace quern
