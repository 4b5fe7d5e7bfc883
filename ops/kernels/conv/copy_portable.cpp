#include "quern/ops/kernels/conv/copy_simd.h"

namespace quern::kernels {

using Arch = xsimd::default_arch;

constinit const CopyKernel conv_copy_portable =
    copy_kernel<Arch>("conv_copy_portable", Isa::portable);

}  // namespace quern::kernels
