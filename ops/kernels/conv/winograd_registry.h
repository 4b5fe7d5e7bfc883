// Winograd's transforms: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/conv/winograd_kernel.h"

namespace quern::kernels {

extern const WinogradKernel conv_winograd_avx512, conv_winograd_avx2, conv_winograd_portable,
    conv_winograd_reference;

/// All records, best first.
std::span<const WinogradKernel* const> winograd_kernels();
/// The first one whose ISA is enabled.
const WinogradKernel& select_winograd_kernel();

}  // namespace quern::kernels
