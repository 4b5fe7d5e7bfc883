// What AMX's strips become, as their kernel has it: its epilogue takes no tile instructions and is
// tested wherever the CPU has AVX512_BF16. Seen by files with ISA flags.
#pragma once
#include "quern/ops/kernels/gemm/strip.h"

namespace quern::test {

/// In builds with kernels for AVX512_BF16.
kernels::CompleteOutputs* avx512_strip_epilogue(const kernels::Epilogue& epilogue);

}  // namespace quern::test
