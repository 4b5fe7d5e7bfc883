// The choice of an optimizer's update.
#pragma once
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// Kernel: any UpdateKernel<Step>. Error: parameters that are not bf16, f32 or f64.
template <class Kernel>
const Kernel& select_update(std::string_view family, DType param) {
  check_computes(family, param);
  const auto* kernel =
      select<Kernel>(family, [=](const Kernel& record) { return record.param == param; });
  check(kernel, family, "parameters: expected bf16, f32 or f64, got {}", param);
  return *kernel;
}
inline const SgdKernel& select_sgd_kernel(DType param) {
  return select_update<SgdKernel>("sgd", param);
}
inline const AdamWKernel& select_adamw_kernel(DType param) {
  return select_update<AdamWKernel>("adamw", param);
}
inline const RmspropKernel& select_rmsprop_kernel(DType param) {
  return select_update<RmspropKernel>("rmsprop", param);
}

}  // namespace quern::kernels
