// Neon's loops, but rounding to bf16 is one instruction instead of nine.
#include "quern/ops/kernels/conv/copy_simd.h"

namespace quern::kernels {

using Arch = xsimd::neon64;

constinit const CopyKernel conv_copy_neon_bf16 =
    copy_kernel<Arch>("conv_copy_neon_bf16", Isa::neon_bf16);

}  // namespace quern::kernels
