// The tile kernels: the records, their list and the choice.
#pragma once
#include <span>

#include "quern/ops/kernels/conv/tile_kernel.h"

namespace quern::kernels {

extern const TileKernel conv_tile_avx512_bf16[1], conv_tile_avx512[3], conv_tile_avx2[3],
    conv_tile_neon_bf16[1], conv_tile_portable[3], conv_tile_reference[3];

/// All records, best first.
std::span<const TileKernel* const> tile_kernels();
/// The first one for this dtype (bf16, f32 or f64) whose ISA is enabled.
const TileKernel& select_tile_kernel(DType dtype);

}  // namespace quern::kernels
