#include "quern/ops/permute.h"

#include "quern/autograd/node.h"
#include "quern/tensor/raw.h"

namespace quern {

Tensor permute(const Tensor& x, const Dims& order) {
  Tensor y = raw::permute(x, order);
  Dims inverse = order;
  for (int i = 0; i < order.size(); ++i) inverse[normalize_dim("permute", order[i], x.dim())] = i;
  return record(
      "permute", std::move(y), {x},
      [inverse](const Tensor& dy, Needs) -> Tensors { return {raw::permute(dy, inverse)}; },
      GradDType::any);
}

Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  return record(
      "transpose", raw::transpose(x, dim0, dim1), {x},
      [=](const Tensor& dy, Needs) -> Tensors { return {raw::transpose(dy, dim0, dim1)}; },
      GradDType::any);
}

}  // namespace quern
