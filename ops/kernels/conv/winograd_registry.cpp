#include "quern/ops/kernels/conv/winograd_registry.h"

#include <array>

#include "quern/ops/kernels/dispatch.h"

namespace quern::kernels {
namespace {

constexpr std::array kRecords{
#ifdef __x86_64__
    &conv_winograd_avx512,
    &conv_winograd_avx2,
#endif
    &conv_winograd_portable,
    &conv_winograd_reference,
};

}  // namespace

std::span<const WinogradKernel* const> winograd_kernels() { return kRecords; }

const WinogradTransforms& select_winograd_transforms(int64_t tile) {
  const WinogradKernel& kernel =
      *first_enabled("conv_winograd", kRecords, [](const WinogradKernel&) { return true; });
  return tile == 4 ? kernel.f4 : kernel.f2;
}

}  // namespace quern::kernels
