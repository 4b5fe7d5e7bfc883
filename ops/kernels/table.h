// The kernels of a kind and the choice among them. kernels.cmake is the list.
#pragma once
#include <span>
#include <string_view>

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/verbose.h"

namespace quern::kernels {

/// All of a kind (GemmKernel, PoolKernel, ...), best first, the reference last, and then those that
/// were added. One that QUERN_KERNEL names comes before all others.
/// Error (at first use): it names none of any kind.
template <class Kernel>
std::span<const Kernel* const> table();

/// Adds a record from outside of the library, which is chosen where QUERN_KERNEL names it.
/// Error: its table has been used.
template <class Kernel>
void add_kernel(const Kernel& record);

struct NoObjection {
  const char* operator()(const auto&) const { return nullptr; }
};

/// The first kernel that `fits`, whose ISA is enabled, and that why_not(kernel) gives no reason
/// against (null); null if there is none. Says so, and why those before it were refused, when
/// asked.
template <class Kernel, class Fits, class WhyNot = NoObjection>
const Kernel* select(std::string_view family, Fits fits, WhyNot why_not = {}) {
  for (const Kernel* kernel : table<Kernel>()) {
    if (!fits(*kernel)) continue;
    if constexpr (requires { kernel->isa; }) {
      if (!isa_enabled(kernel->isa)) {
        if (verbosity() == Verbosity::dispatch)
          report_refusal(family, kernel->name, why_disabled(kernel->isa));
        continue;
      }
    }
    if (const char* reason = why_not(*kernel)) {
      report_refusal(family, kernel->name, reason);
      continue;
    }
    report_choice(family, kernel->name);
    return kernel;
  }
  return nullptr;
}

/// Of those that fit, as all dtypes that ops compute in have one. Error of `op`: another dtype.
template <class Kernel, class Fits>
const Kernel& select_by_dtype(std::string_view op, DType dtype, Fits fits) {
  const Kernel* kernel = select<Kernel>(op, fits);
  if (!kernel) refuse_dtype(op, dtype);
  return *kernel;
}

}  // namespace quern::kernels
