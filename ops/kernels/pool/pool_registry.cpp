#include "quern/ops/kernels/pool/pool_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"

namespace quern::kernels {

std::span<const PoolKernel* const> pool_kernels() {
  static const auto list = [] {
    std::vector<const PoolKernel*> all;
    for (std::span records : {
#ifdef __x86_64__
             std::span(pool_avx512), std::span(pool_avx2),
#endif
             std::span(pool_portable), std::span(pool_planes), std::span(pool_reference)})
      for (const PoolKernel& record : records) all.push_back(&record);
    return all;
  }();
  return list;
}

const PoolKernel& select_pool_kernel(DType dtype, int64_t channels, int64_t taps) {
  return *first_enabled("pool", pool_kernels(), [&](const PoolKernel& kernel) {
    return kernel.dtype == dtype && kernel.min_channels <= channels &&
           channels <= kernel.max_channels && taps <= kernel.max_taps;
  });
}

}  // namespace quern::kernels
