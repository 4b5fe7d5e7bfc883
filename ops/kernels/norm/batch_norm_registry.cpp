#include "quern/ops/kernels/norm/batch_norm_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"

namespace quern::kernels {

std::span<const BatchNormKernel* const> batch_norm_kernels() {
  static const auto list = [] {
    std::vector<const BatchNormKernel*> all;
    for (std::span records : {
#ifdef __x86_64__
             std::span(batch_norm_avx512), std::span(batch_norm_avx2),
#endif
             std::span(batch_norm_portable), std::span(batch_norm_reference)})
      for (const BatchNormKernel& record : records) all.push_back(&record);
    return all;
  }();
  return list;
}

const BatchNormKernel& select_batch_norm_kernel(DType dtype, bool nhwc) {
  return *first_enabled("batch_norm", batch_norm_kernels(), [&](const BatchNormKernel& kernel) {
    return kernel.dtype == dtype && kernel.nhwc == nhwc;
  });
}

}  // namespace quern::kernels
