// The choice of a kernel that rounds by chance.
#pragma once
#include "quern/ops/kernels/round/by_chance_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// Error of `op`: neither bf16 nor f16.
inline const ByChanceKernel& select_by_chance(std::string_view op, DType to) {
  return select_by_dtype<ByChanceKernel>(op, to,
                                         [=](const ByChanceKernel& k) { return k.to == to; });
}

}  // namespace quern::kernels
