// The choice of an optimizer's update.
#pragma once
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// Kernel: any UpdateKernel<Step>; in f64 for f64 parameters, else in f32. Error: parameters that
/// are not floating.
template <class Kernel>
const Kernel& select_update(std::string_view family, DType param) {
  check(is_floating(param), family, "parameters: expected bf16, f16, f32 or f64, got {}", param);
  const DType dtype = accumulator(param);
  return *select<Kernel>(family, [=](const Kernel& record) { return record.dtype == dtype; });
}
inline const SgdKernel& select_sgd_kernel(DType param) {
  return select_update<SgdKernel>("sgd", param);
}
inline const AdamWKernel& select_adamw_kernel(DType param) {
  return select_update<AdamWKernel>("adamw", param);
}

}  // namespace quern::kernels
