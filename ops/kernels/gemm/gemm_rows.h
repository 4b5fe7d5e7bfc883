// How the Arm tiles come to a version of themselves for each number of rows.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"

namespace quern::kernels {
namespace {

/// Calls Kernel::run<m>: a tile with fewer rows neither reads nor writes those that are missing.
template <class Kernel>
void dispatch_rows(const GemmTile& tile) {
  switch (tile.m) {
    case 1: return Kernel::template run<1>(tile);
    case 2: return Kernel::template run<2>(tile);
    case 3: return Kernel::template run<3>(tile);
    case 4: return Kernel::template run<4>(tile);
    case 5: return Kernel::template run<5>(tile);
    case 6: return Kernel::template run<6>(tile);
    case 7: return Kernel::template run<7>(tile);
    default: return Kernel::template run<8>(tile);
  }
}

}  // namespace
}  // namespace quern::kernels
