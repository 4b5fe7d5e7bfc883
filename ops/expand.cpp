#include "quern/ops/expand.h"

#include "quern/autograd/node.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/sum.h"
#include "quern/tensor/raw.h"

namespace quern {

Tensor expand(const Tensor& x, const Shape& shape) {
  Tensor y = raw::expand(x, shape);
  return record(
      "expand", std::move(y), {x},
      [shape = x.shape()](const Tensor& dy, Needs) -> Tensors { return {raw::sum_to(dy, shape)}; },
      GradDType::any);
}

}  // namespace quern
