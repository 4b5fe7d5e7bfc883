#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/loss.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {

using kernels::Binary;

namespace {
constexpr std::string_view kOp = "mse_loss";
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  for (const auto& [name, t] : {std::pair("input", &input), std::pair("target", &target)}) {
    check(t->defined() && is_floating(t->dtype()), kOp, "{}: expected bf16, f32 or f64, got {}",
          name, *t);
    detail::check_dense(kOp, name, *t);
  }
  check(input.shape() == target.shape(), kOp, "target: expected shape {}, got {}", input.shape(),
        target.shape());
  const Tensor a = autocast::widen(input), b = autocast::widen(target);
  const double count = reduction == Reduction::mean ? static_cast<double>(a.numel()) : 1;

  Tensor y;
  if (reduction == Reduction::none) {
    y = raw::binary(kOp, Binary::squared_difference, a, b);
  } else {
    const DType dtype = promote(a.dtype(), b.dtype());
    const Tensor x = raw::contiguous(raw::to(a, dtype), a.format());
    y = raw::sum_to(kOp, Binary::squared_difference, x,
                    raw::contiguous(raw::to(b, dtype), a.format()), Shape::filled(a.dim(), 1));
    y = raw::binary(kOp, Binary::div, raw::to(raw::reshape(y, {}), dtype), count);
  }
  return record(kOp, y, {a, b},
                [count, a = SavedTensor(kOp, a), b = SavedTensor(kOp, b)](const Tensor& dy,
                                                                          Needs needs) -> Tensors {
                  const double scale = 2 / count * (dy.numel() == 1 ? dy.item() : 1);
                  Tensor da = raw::binary(kOp, Binary::scaled_difference, a.get(), b.get(), scale);
                  if (dy.numel() != 1) da = raw::binary(kOp, Binary::mul, da, dy);
                  return {da, needs[1] ? raw::unary(kOp, kernels::Unary::neg, da) : Tensor()};
                });
}

}  // namespace quern
