// The choice of a kernel: the first record of an ordered list, best first, that fits and may run.
#pragma once
#include <string_view>

#include "quern/tensor/cpu_features.h"
#include "quern/tensor/verbose.h"

namespace quern::kernels {

/// The first of `records` (a range of pointers to records with a name and an isa) that `fits` and
/// whose ISA is enabled; null if there is none. Says so, and why those before it were refused, when
/// asked.
template <class Records, class Fits>
auto first_enabled(std::string_view family, const Records& records, Fits fits) {
  for (auto* kernel : records) {
    if (!fits(*kernel)) continue;
    if (isa_enabled(kernel->isa)) {
      report_choice(family, kernel->name);
      return kernel;
    }
    report_refusal(family, kernel->name, why_disabled(kernel->isa));
  }
  return static_cast<decltype(*records.begin() + 0)>(nullptr);
}

}  // namespace quern::kernels
