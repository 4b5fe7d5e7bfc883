#include "quern/ops/kernels/conv/winograd_registry.h"
#include "quern/ops/kernels/conv/winograd_simd.h"

namespace quern::kernels {

constinit const WinogradKernel conv_winograd_portable =
    WinogradLoops<xsimd::default_arch>::record("conv_winograd_portable", Isa::portable);

}  // namespace quern::kernels
