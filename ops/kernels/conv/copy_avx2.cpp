#include "quern/ops/kernels/conv/copy_simd.h"

namespace quern::kernels {

using Arch = xsimd::fma3<xsimd::avx2>;

constinit const CopyKernel conv_copy_avx2 = copy_kernel<Arch>("conv_copy_avx2", Isa::avx2);

}  // namespace quern::kernels
