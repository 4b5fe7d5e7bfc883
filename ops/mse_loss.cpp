#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/loss.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/raw.h"

namespace quern {

using kernels::Binary;

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  for (const auto& [name, t] : {std::pair("input", &input), std::pair("target", &target)}) {
    check(t->defined() && is_floating(t->dtype()), "mse_loss",
          "{}: expected bf16, f32 or f64, got {}", name, *t);
    detail::check_dense("mse_loss", name, *t);
  }
  check(input.shape() == target.shape(), "mse_loss", "target: expected shape {}, got {}",
        input.shape(), target.shape());
  const Tensor a = autocast::widen(input), b = autocast::widen(target);
  const Tensor difference = raw::binary("mse_loss", Binary::sub, a, b);
  const double count = reduction == Reduction::mean ? static_cast<double>(a.numel()) : 1;

  Tensor y;
  if (reduction == Reduction::none) {
    y = raw::binary("mse_loss", Binary::mul, difference, difference);
  } else {
    const Shape one = Shape::filled(difference.dim(), 1);
    y = raw::sum_products_to("mse_loss", difference, difference, one);
    y = raw::to(raw::reshape(y, {}), difference.dtype());
    y = raw::binary("mse_loss", Binary::div, y, count);
  }
  return record(
      "mse_loss", y, {a, b},
      [count, difference = SavedTensor("mse_loss", difference)](const Tensor& dy,
                                                                Needs needs) -> Tensors {
        const Tensor scale =
            raw::binary("mse_loss", Binary::mul, dy, 2 / count);  // mostly a number
        const Tensor da = raw::binary("mse_loss", Binary::mul, difference.get(), scale);
        return {da, needs[1] ? raw::unary("mse_loss", kernels::Unary::neg, da) : Tensor()};
      });
}

}  // namespace quern
