#include "quern/ops/kernels/conv/copy_simd.h"

namespace quern::kernels {

using Arch = xsimd::avx512bw;

constinit const CopyKernel conv_copy_avx512 = copy_kernel<Arch>("conv_copy_avx512", Isa::avx512);

}  // namespace quern::kernels
