#include "quern/ops/kernels/norm/join_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"

namespace quern::kernels {

std::span<const JoinKernel* const> join_kernels() {
  static const auto list = [] {
    std::vector<const JoinKernel*> all;
    for (std::span records : {
#ifdef __x86_64__
             std::span(join_avx512), std::span(join_avx2),
#endif
             std::span(join_portable), std::span(join_reference)})
      for (const JoinKernel& record : records) all.push_back(&record);
    return all;
  }();
  return list;
}

const JoinKernel& select_join_kernel(DType dtype) {
  return *first_enabled("join", join_kernels(),
                        [&](const JoinKernel& kernel) { return kernel.dtype == dtype; });
}

}  // namespace quern::kernels
