#include "quern/ops/kernels/elementwise/elementwise_registry.h"

#include <vector>

#include "quern/ops/kernels/elementwise/elementwise_records.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/verbose.h"

namespace quern::kernels {
namespace {

template <class Kernel>
std::vector<Kernel> join(std::initializer_list<std::span<const Kernel>> tables) {
  std::vector<Kernel> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

template <class Kernel, class Op>
const Kernel& select(std::string_view caller, std::span<const Kernel> kernels, Op op, DType dtype) {
  const bool verbose = verbosity() == Verbosity::dispatch;
  for (const Kernel& kernel : kernels) {
    if (kernel.op != op || kernel.dtype != dtype) continue;
    if (isa_enabled(kernel.isa)) {
      if (verbose) report_choice(caller, kernel.name);
      return kernel;
    }
    if (verbose) report_refusal(caller, kernel.name, why_disabled(kernel.isa));
  }
  fail(caller, fmt::format("dtype: expected a {} dtype, got {}",
                           dtype == DType::boolean ? "numeric" : "floating", dtype));
}

}  // namespace

std::span<const UnaryKernel> unary_kernels() {
  static const std::vector all = join<UnaryKernel>({
#if defined(__x86_64__)
    unary_avx512, unary_avx2,
#endif
        unary_portable, unary_reference
  });
  return all;
}

std::span<const BinaryKernel> binary_kernels() {
  static const std::vector all = join<BinaryKernel>({
#if defined(__x86_64__)
    binary_avx512, binary_avx2,
#endif
        binary_portable, binary_reference
  });
  return all;
}

const UnaryKernel& select_unary(std::string_view caller, Unary op, DType dtype) {
  return select(caller, unary_kernels(), op, dtype);
}
const BinaryKernel& select_binary(std::string_view caller, Binary op, DType dtype) {
  return select(caller, binary_kernels(), op, dtype);
}

}  // namespace quern::kernels
