#include "quern/ops/kernels/norm/layer_norm_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"

namespace quern::kernels {

std::span<const LayerNormKernel* const> layer_norm_kernels() {
  static const auto list = [] {
    std::vector<const LayerNormKernel*> all;
    for (std::span records : {
#ifdef __x86_64__
             std::span(layer_norm_avx512), std::span(layer_norm_avx2),
#endif
             std::span(layer_norm_portable), std::span(layer_norm_reference)})
      for (const LayerNormKernel& record : records) all.push_back(&record);
    return all;
  }();
  return list;
}

const LayerNormKernel& select_layer_norm_kernel(DType dtype) {
  return *first_enabled("layer_norm", layer_norm_kernels(),
                        [&](const LayerNormKernel& kernel) { return kernel.dtype == dtype; });
}

}  // namespace quern::kernels
