// Winograd's transforms: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/conv/winograd_kernel.h"

namespace quern::kernels {

extern const WinogradKernel conv_winograd_avx512, conv_winograd_avx2, conv_winograd_portable,
    conv_winograd_reference;

/// All records, best first.
std::span<const WinogradKernel* const> winograd_kernels();
/// Of the first one whose ISA is enabled, for tiles of 2 or 4 outputs.
const WinogradTransforms& select_winograd_transforms(int64_t tile);

}  // namespace quern::kernels
