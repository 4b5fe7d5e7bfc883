#include "quern/ops/kernels/conv/winograd_registry.h"
#include "quern/ops/kernels/conv/winograd_simd.h"

namespace quern::kernels {

constinit const WinogradKernel conv_winograd_avx512 =
    WinogradLoops<xsimd::avx512bw>::record("conv_winograd_avx512", Isa::avx512);

}  // namespace quern::kernels
