// Step 7's tile on loops that do what the instructions do, for CPUs that have no tile registers.
#include "7_amx_tiles.h"

#include <cstring>

#include "loops.h"
#include "quern/tensor/cpu_features.h"

namespace quern::lessons {
namespace {

/// A register is 16 rows of 64 bytes, which an instruction reads as f32 or as pairs of bf16.
struct Loops {
  struct Register {
    float sums[16][16];
    bfloat16 pairs[16][16][2];
  };
  static inline thread_local Register tile[8];

  static void begin() {}
  static void end() {}
  template <int t>
  static void load(const void* from, int64_t row_bytes) {
    for (int i = 0; i < 16; ++i) {
      const char* const row = static_cast<const char*>(from) + i * row_bytes;
      std::memcpy(tile[t].sums[i], row, 64);
      std::memcpy(static_cast<void*>(tile[t].pairs[i]), row, 64);
    }
  }
  template <int t>
  static void store(void* to, int64_t row_bytes) {
    for (int i = 0; i < 16; ++i)
      std::memcpy(static_cast<char*>(to) + i * row_bytes, tile[t].sums[i], 64);
  }
  // [dot]
  /// TDPBF16PS: row i of C gets row i of A, 16 pairs, times B, whose row p has the p-th pair of
  /// each of 16 columns.
  template <int c, int a, int b>
  static void dot() {
    for (int i = 0; i < 16; ++i) {
      float even[16] = {}, odd[16] = {};
      for (int p = 0; p < 16; ++p) {
        const bfloat16* const x = tile[a].pairs[i][p];
        for (int j = 0; j < 16; ++j) {
          even[j] += x[0] * tile[b].pairs[p][j][0];
          odd[j] += x[1] * tile[b].pairs[p][j][1];
        }
      }
      for (int j = 0; j < 16; ++j) tile[c].sums[i][j] += even[j] + odd[j];
    }
  }
  // [end]
};

}  // namespace

constinit const Tile<bfloat16> kEmulatedTile = amx_tile_on<Loops>();

bool has_amx() { return isa_enabled(Isa::amx); }

const Tile<bfloat16>& amx_or_loops() {
#ifdef __x86_64__
  if (has_amx()) return kAmxTile;
#endif
  return kEmulatedTile;
}

}  // namespace quern::lessons
