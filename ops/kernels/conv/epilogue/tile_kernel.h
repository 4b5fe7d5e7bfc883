// A tile of complete sums in memory is finished by these: where the micro-kernel that summed does
// not do it itself. A record an instruction set and dtype. Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

/// m×n complete sums (f32; f64 for f64), in the first-level cache. Rows are pixels.
struct SumTile {
  const void* sums;
  int64_t stride;
  int64_t m, n;
};

struct TileKernel {
  const char* name;  // conv_tile_<dtype>_<isa>
  Isa isa;
  DType dtype;
  void (*run)(const SumTile&, const Epilogue&);
};

}  // namespace quern::kernels
