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

const WinogradKernel& select_winograd_kernel() {
  return *first_enabled("conv_winograd", kRecords, [](const WinogradKernel&) { return true; });
}

}  // namespace quern::kernels
