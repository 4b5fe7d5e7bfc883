#include "quern/ops/kernels/elementwise/elementwise_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"
#include "quern/ops/kernels/elementwise/elementwise_records.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

template <class Kernel>
std::vector<const Kernel*> join(std::initializer_list<std::span<const Kernel>> tables) {
  std::vector<const Kernel*> records;
  for (const auto& table : tables)
    for (const Kernel& record : table) records.push_back(&record);
  return records;
}

template <class Kernel, class Op>
const Kernel& select(std::string_view caller, std::span<const Kernel* const> kernels, Op op,
                     DType dtype) {
  const auto* kernel = first_enabled(caller, kernels, [=](const Kernel& record) {
    return record.op == op && record.dtype == dtype;
  });
  check(kernel, caller, "dtype: expected a {} dtype, got {}",
        dtype == DType::boolean ? "numeric" : "floating", dtype);
  return *kernel;
}

}  // namespace

std::span<const UnaryKernel* const> unary_kernels() {
  static const auto records = join<UnaryKernel>({
#if defined(__x86_64__)
    unary_avx512, unary_avx2,
#endif
        unary_portable, unary_reference
  });
  return records;
}

std::span<const BinaryKernel* const> binary_kernels() {
  static const auto records = join<BinaryKernel>({
#if defined(__x86_64__)
    binary_avx512, binary_avx2,
#endif
        binary_portable, binary_reference
  });
  return records;
}

const UnaryKernel& select_unary(std::string_view caller, Unary op, DType dtype) {
  return select(caller, unary_kernels(), op, dtype);
}
const BinaryKernel& select_binary(std::string_view caller, Binary op, DType dtype) {
  return select(caller, binary_kernels(), op, dtype);
}

}  // namespace quern::kernels
