// How the tiles come to a version of themselves for each number of rows, or of columns.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"

namespace quern::kernels {
namespace {

/// Calls Kernel::run<count>; counts are 1 to kMost.
template <class Kernel, int kMost>
void dispatch_count(int64_t count, const GemmTile& tile) {
  if constexpr (kMost > 1)
    if (count < kMost) return dispatch_count<Kernel, kMost - 1>(count, tile);
  Kernel::template run<kMost>(tile);
}

/// Calls Kernel::run<m>: a tile with fewer rows neither reads nor writes those that are missing.
template <class Kernel, int kMr>
void dispatch_rows(const GemmTile& tile) {
  dispatch_count<Kernel, kMr>(tile.m, tile);
}

}  // namespace
}  // namespace quern::kernels
