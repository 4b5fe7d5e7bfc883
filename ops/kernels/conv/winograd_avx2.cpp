#include "quern/ops/kernels/conv/winograd_registry.h"
#include "quern/ops/kernels/conv/winograd_simd.h"

namespace quern::kernels {

constinit const WinogradKernel conv_winograd_avx2 =
    WinogradLoops<xsimd::fma3<xsimd::avx2>>::record("conv_winograd_avx2", Isa::avx2);

}  // namespace quern::kernels
