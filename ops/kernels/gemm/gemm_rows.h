// How the tiles come to a version of themselves for each number of rows.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"

namespace quern::kernels {
namespace {

/// Calls Kernel::run<m>, m up to kMr: a tile with fewer rows neither reads nor writes those that are
/// missing.
template <class Kernel, int kMr>
void dispatch_rows(const GemmTile& tile) {
  if constexpr (kMr > 1)
    if (tile.m < kMr) return dispatch_rows<Kernel, kMr - 1>(tile);
  Kernel::template run<kMr>(tile);
}

}  // namespace
}  // namespace quern::kernels
