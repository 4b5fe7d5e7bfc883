// The kernels of a kind and the choice among them. kernels.cmake is the list.
#pragma once
#include <span>
#include <string_view>

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/verbose.h"

namespace quern::kernels {

/// All of a kind (GemmKernel, PoolKernel, ...), best first, the reference last.
template <class Kernel>
std::span<const Kernel* const> table();

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

}  // namespace quern::kernels
