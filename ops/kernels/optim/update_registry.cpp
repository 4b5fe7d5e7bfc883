#include "quern/ops/kernels/optim/update_registry.h"

#include <array>

#include "quern/ops/kernels/optim/update_records.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/verbose.h"

namespace quern::kernels {
namespace {

constexpr std::array kSgdRecords{
#define QUERN_SGD_KERNEL(record) &record,
#define QUERN_ADAMW_KERNEL(record)
#include "quern/ops/kernels/optim/kernels.inc"
};
constexpr std::array kAdamWRecords{
#define QUERN_SGD_KERNEL(record)
#define QUERN_ADAMW_KERNEL(record) &record,
#include "quern/ops/kernels/optim/kernels.inc"
};

template <class Kernel>
const Kernel& select(std::string_view family, std::span<const Kernel* const> list, DType param) {
  for (const Kernel* kernel : list) {
    if (kernel->param != param) continue;
    if (isa_enabled(kernel->isa)) {
      report_choice(family, kernel->name);
      return *kernel;
    }
    report_refusal(family, kernel->name, why_disabled(kernel->isa));
  }
  fail(family, fmt::format("parameters: expected bf16, f32 or f64, got {}", param));
}

}  // namespace

std::span<const SgdKernel* const> sgd_kernels() { return kSgdRecords; }
std::span<const AdamWKernel* const> adamw_kernels() { return kAdamWRecords; }

const SgdKernel& select_sgd_kernel(DType param) { return select("sgd", sgd_kernels(), param); }
const AdamWKernel& select_adamw_kernel(DType param) {
  return select("adamw", adamw_kernels(), param);
}

}  // namespace quern::kernels
