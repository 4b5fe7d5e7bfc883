// The choice of a kernel that resizes pictures.
#pragma once
#include "quern/ops/kernels/image/resample_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

inline const ResampleKernel& select_resample_kernel() {
  return *select<ResampleKernel>("resample", [](const ResampleKernel&) { return true; });
}

}  // namespace quern::kernels
