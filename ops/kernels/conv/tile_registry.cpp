#include "quern/ops/kernels/conv/tile_registry.h"

#include <vector>

#include "quern/ops/kernels/dispatch.h"

namespace quern::kernels {

std::span<const TileKernel* const> tile_kernels() {
  static const auto list = [] {
    std::vector<const TileKernel*> all;
    for (std::span<const TileKernel> records : {
#ifdef __x86_64__
             std::span<const TileKernel>(conv_tile_avx512_bf16),
             std::span<const TileKernel>(conv_tile_avx512),
             std::span<const TileKernel>(conv_tile_avx2),
#elif defined(__aarch64__)
             std::span<const TileKernel>(conv_tile_neon_bf16),
#endif
             std::span<const TileKernel>(conv_tile_portable),
             std::span<const TileKernel>(conv_tile_reference)})
      for (const TileKernel& record : records) all.push_back(&record);
    return all;
  }();
  return list;
}

const TileKernel& select_tile_kernel(DType dtype) {
  return *first_enabled("conv_tile", tile_kernels(),
                        [&](const TileKernel& kernel) { return kernel.dtype == dtype; });
}

}  // namespace quern::kernels
