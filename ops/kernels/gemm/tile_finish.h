// What is done to a tile of complete sums on its way out. Micro-kernels that can do it while the sums
// are in registers (GemmTile::finish) and the tile kernels (conv/tile_kernel.h) agree on it. Seen by
// files with ISA flags.
#pragma once
#include <cstdint>

namespace quern::kernels {

/// Rows of a tensor that belong to those of a tile.
struct TileRows {
  const void* data;
  int64_t stride;
};

/// Tensors are of the operands' dtype, or `wide`: of the sums', as arrays [n] are.
struct TileFinish {
  enum class Kind : uint8_t {
    store,     // out = sum
    activate,  // out = sum + shift + residual, at least 0 if relu
    moments,   // out = sum; first += Σ(sum - center), second += Σ(sum - center)² over the rows
    /// out = dz = sum + residual, or 0 where (x - center)·scale + shift <= 0;
    /// first += Σdz, second += Σdz·(x - center)
    gradient,
  } kind;
  void* out;  // may be the sums themselves
  int64_t out_stride;
  int64_t jump = 0;  // GemmTile's, of out, residual and x
  const void *scale = nullptr, *shift = nullptr, *center = nullptr;
  TileRows residual = {}, x = {};  // residual.data may be null
  bool relu = false;
  bool wide = false;
  void *first = nullptr, *second = nullptr;
};

}  // namespace quern::kernels
