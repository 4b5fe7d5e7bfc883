// Step 7: two by two tile registers of C, over any Tiles that have AMX's instructions: load, store,
// zero, dot. 7_amx_tiles_amx.cpp brings the real ones, 7_amx_tiles.cpp loops that do the same.
#pragma once
#include <cstdint>

#include "tile.h"

namespace quern::lessons {

// [tile]
constexpr int kHalf = 16;  // rows of a tile register
constexpr int kRowK = 32;  // bf16 in one of its rows of 64 bytes
constexpr int kRowBytes = 64;

/// Registers 0..3 are C, 4 and 5 halves of A's rows, 6 and 7 halves of B's columns.
template <class Tiles>
void amx_tile(int64_t k, const bfloat16* a, const bfloat16* b, float* c, int64_t ldc) {
  float *const below = c + kHalf * ldc, *const ends = below + kHalf;
  const int64_t c_row = ldc * int64_t{sizeof(float)};
  Tiles::begin();
  Tiles::template load<0>(c, c_row), Tiles::template load<1>(c + kHalf, c_row);
  Tiles::template load<2>(below, c_row), Tiles::template load<3>(ends, c_row);
  for (int64_t p = 0; p < k; p += kRowK, a += 2 * kHalf * kRowK, b += 2 * kHalf * kRowK) {
    Tiles::template load<4>(a, kRowBytes);
    Tiles::template load<5>(a + kHalf * kRowK, kRowBytes);
    Tiles::template load<6>(b, 2 * kRowBytes);  // a row of B's panel is 32 pairs
    Tiles::template load<7>(b + kRowK, 2 * kRowBytes);
    Tiles::template dot<0, 4, 6>(), Tiles::template dot<1, 4, 7>();
    Tiles::template dot<2, 5, 6>(), Tiles::template dot<3, 5, 7>();
  }
  Tiles::template store<0>(c, c_row), Tiles::template store<1>(c + kHalf, c_row);
  Tiles::template store<2>(below, c_row), Tiles::template store<3>(ends, c_row);
  Tiles::end();
}
// [end]

template <class Tiles>
constexpr Tile<bfloat16> amx_tile_on() {
  return {.mr = 2 * kHalf, .nr = 2 * kHalf, .a_step = kRowK, .b_step = 2, .run = amx_tile<Tiles>};
}

}  // namespace quern::lessons
