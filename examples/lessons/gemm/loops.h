// The loops around a tile, by the names that BLIS gave them; 3_packing.cpp.
#pragma once
#include "gemm.h"
#include "tile.h"

namespace quern::lessons {

/// Rows of A, columns of B and depth of the blocks that fit the caches.
struct Blocks {
  int64_t mc, nc, kc;
};
template <class T>
Blocks blocks_for(const Tile<T>& tile);

/// A[m×k] in panels of tile.mr rows, B[k×n] in panels of tile.nr columns, one behind the other;
/// zeros where the last one has no more rows or columns, and where k ends before the tile's step.
template <class T>
void pack_a(const Tile<T>& tile, int64_t m, int64_t k, Matrix<const T> a, T* packed);
template <class T>
void pack_b(const Tile<T>& tile, int64_t n, int64_t k, Matrix<const T> b, T* packed);
/// k as packed panels have it.
template <class T>
int64_t padded_k(const Tile<T>& tile, int64_t k);

/// C += A·B of packed blocks.
template <class T>
void macro_kernel(const Tile<T>& tile, Size size, const T* packed_a, const T* packed_b,
                  Matrix<float> c);
/// C += A·B.
template <class T>
void five_loops(const Tile<T>& tile, Size size, Matrix<const T> a, Matrix<const T> b,
                Matrix<float> c);

/// The fastest tiles of the steps that this CPU runs; AMX's, or the loops in its place.
const Tile<float>& best_f32_tile();
const Tile<bfloat16>& best_bf16_tile();
const Tile<bfloat16>& amx_or_loops();

}  // namespace quern::lessons
