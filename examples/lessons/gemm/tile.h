// The contract between the loops around a tile (3_packing.cpp) and the tile. Files compiled for one
// instruction set see this, intrinsics and nothing else: an inline function that is compiled there
// could be the one copy that the linker keeps, for all CPUs.
//
//          k                  nr                 nr
//       ┌──────┐          ┌────────┐         ┌────────┐  ldc
//    mr │  A   │  times   │   B    │ k   to  │   C    │  (f32)
//       └──────┘          └────────┘         └────────┘
//
// A and B are packed: they lie in the order in which the tile reads them. Of A's panel of mr rows,
// a_step elements of a row lie side by side, then as many of the next row: element (i, p) is at
// (p/a_step)·mr·a_step + i·a_step + p%a_step. B's panel of nr columns has b_step likewise. k is a
// multiple of both.
#pragma once
#include <cstdint>

#include "quern/tensor/bfloat16.h"

namespace quern::lessons {

template <class T>
struct Tile {
  int mr, nr;
  int a_step, b_step;
  void (*run)(int64_t k, const T* a, const T* b, float* c, int64_t ldc);  // C += A·B
};

extern const Tile<float> kVectorTile, kWideTile;       // steps 4, 5
extern const Tile<bfloat16> kPairTile, kEmulatedTile;  // steps 6, 7
extern const Tile<bfloat16> kAmxTile;                  // x86 only

}  // namespace quern::lessons
