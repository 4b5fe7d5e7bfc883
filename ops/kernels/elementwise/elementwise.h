// The choice of an elementwise kernel.
#pragma once
#include "quern/ops/kernels/elementwise/elementwise_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {

/// Kernel: UnaryKernel or BinaryKernel. `caller` is the op that errors name: a dtype that the
/// function has no kernel for.
template <class Kernel, class Op>
const Kernel& select_elementwise(std::string_view caller, Op op, DType dtype) {
  check_computes(caller, dtype);
  const auto* kernel = select<Kernel>(
      caller, [=](const Kernel& record) { return record.op == op && record.dtype == dtype; });
  check(kernel, caller, "dtype: expected a {} dtype, got {}",
        dtype == DType::boolean ? "numeric" : "floating", dtype);
  return *kernel;
}
inline const UnaryKernel& select_unary(std::string_view caller, Unary op, DType dtype) {
  return select_elementwise<UnaryKernel>(caller, op, dtype);
}
inline const BinaryKernel& select_binary(std::string_view caller, Binary op, DType dtype) {
  return select_elementwise<BinaryKernel>(caller, op, dtype);
}
inline const ComparisonKernel& select_comparison(std::string_view caller, Comparison op,
                                                 DType dtype) {
  return select_elementwise<ComparisonKernel>(caller, op, dtype);
}
inline const ChoiceKernel& select_choice(std::string_view caller, int64_t item) {
  return *select<ChoiceKernel>(caller,
                               [=](const ChoiceKernel& kernel) { return kernel.item == item; });
}

}  // namespace quern::kernels
