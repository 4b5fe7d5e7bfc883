// What is done to a tile of sums when it is complete, before it is stored: a record an instruction
// set and dtype. Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/tensor/types.h"

namespace quern::kernels {

/// m×n complete sums (f32; f64 for f64), in the first-level cache, and where they go, as the dtype.
/// Rows are pixels. `out` may be the sums themselves.
struct SumTile {
  const void* sums;
  int64_t sums_stride;
  int64_t m, n;
  void* out;
  int64_t out_stride;
};

/// Rows of the dtype that belong to a tile's; arrays [n] are of the sums' type.
struct TileRows {
  const void* data;
  int64_t stride;
};

struct TileKernel {
  const char* name;  // conv_tile_<dtype>_<isa>
  Isa isa;
  DType dtype;
  /// out = sum
  void (*store)(const SumTile&);
  /// out = scale·sum + shift + residual, at least 0 if relu; residual.data may be null
  void (*activate)(const SumTile&, const void* scale, const void* shift, TileRows residual,
                   bool relu);
  /// out = sum; d += Σ(sum - pivot) and d2 += Σ(sum - pivot)² over the rows
  void (*moments)(const SumTile&, const void* pivot, void* d, void* d2);
  /// out = dz = sum + residual, or 0 where scale·x + shift <= 0; s += Σdz and sx += Σdz·(x - mean)
  void (*gradient)(const SumTile&, TileRows residual, TileRows x, const void* scale,
                   const void* shift, const void* mean, void* s, void* sx);
};

}  // namespace quern::kernels
