#include "quern/ops/convert.h"

#include "quern/autograd/node.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {
namespace {

Tensors pass_on(const Tensor& dy, Needs) { return {dy}; }

}  // namespace

Tensor to(const Tensor& x, DType dtype) {
  detail::check_dense("to", "x", x);
  if (x.dtype() == dtype) return x;
  Tensor y = raw::to(x, dtype);
  if (!is_floating(dtype)) return y;
  return record(
      "to", std::move(y), {x},
      [dtype = x.dtype()](const Tensor& dy, Needs) -> Tensors { return {raw::to(dy, dtype)}; },
      GradDType::any);
}

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  detail::check_dense("contiguous", "x", x);
  check(format == MemoryFormat::contiguous || x.dim() == 4, "contiguous",
        "x: expected 4 dimensions for channels_last, got {}", x);
  if (x.is_dense_as(format)) return x;
  return record("contiguous", raw::contiguous(x, format), {x}, pass_on, GradDType::any);
}

Tensor clone(const Tensor& x) {
  detail::check_dense("clone", "x", x);
  return record("clone", raw::clone(x), {x}, pass_on, GradDType::any);
}

}  // namespace quern
