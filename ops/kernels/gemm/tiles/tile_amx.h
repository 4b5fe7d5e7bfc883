// The AMX tile, 2×2 tile registers of C: 32 rows × 32 columns. A template over the tile
// instructions, so that the same source runs on AMX (gemm_amx.cpp) and, in the tests, on an
// emulation of it:
//
//   tmm0 tmm1   C, rows 0..15     tmm4   A, rows 0..15      tmm6 tmm7   B, columns 0..15, 16..31
//   tmm2 tmm3      rows 16..31    tmm5      rows 16..31                 of 32 k: 16 rows of pairs
//
// All is in one class template: instantiated with a Tiles of internal linkage it stays in its file.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/gemm/gemm_kernel.h"

namespace quern::kernels {

/// The memory operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Tiles: static configure(const TileConfig&), release(), zero<t>(), load<t>(from, row_bytes),
/// store<t>(to, row_bytes), and dot<c, a, b>(): C += A·B in pairs of bf16.
template <class Tiles>
class AmxGemm {
 public:
  static constexpr int kMr = 32, kNr = 32, kKr = 2, kKMultiple = 32;

  static void run(const GemmTile& tile) {
    const Use use;
    configure(tile.m);
    if (tile.m > 16) tile.n > 16 ? multiply<2, 2>(tile) : multiply<2, 1>(tile);
    else tile.n > 16 ? multiply<1, 2>(tile) : multiply<1, 1>(tile);
  }

  /// A call, which leaves nothing behind unless it is between enter() and leave().
  struct Use {
    const bool alone = !held.between_calls;
    ~Use() {
      if (alone) leave();
    }
  };

  /// From here to leave() the configuration stays with the thread from call to call, since loading
  /// one costs as much as several multiplications. Other code of this thread may use tiles before
  /// and after, with a configuration of its own.
  static void enter() { held = {.between_calls = true}; }
  static void leave() {
    if (held.rows > 0) Tiles::release();
    held = {};
  }

  /// Rows of A and C as m says, so that missing ones are neither read nor written.
  static void configure(int64_t m) {
    if (held.rows == m) return;
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      const int block = t < 4 ? t / 2 : t - 4;
      const int64_t rows = t >= 6 ? kHalf : half(m, block);
      if (rows <= 0) continue;
      config.rows[t] = static_cast<uint8_t>(rows);
      config.row_bytes[t] = 64;
    }
    Tiles::configure(config);
    held.rows = m;
  }

 private:
  static constexpr int kHalf = 16;  // rows and columns of a tile register

  static int64_t half(int64_t size, int index) {
    const int64_t left = size - kHalf * index;
    return left < kHalf ? left : kHalf;
  }

  /// What this thread's tiles are configured for.
  struct Held {
    bool between_calls = false;
    int64_t rows = 0;  // of A and C; 0: nothing
  };
  static inline thread_local Held held{};

  template <int kRowTiles, int kColumnTiles>
  static void multiply(const GemmTile& tile) {
    const char* ahead = static_cast<const char*>(tile.prefetch);
    begin<0, 0>(tile);
    if constexpr (kColumnTiles == 2) begin<0, 1>(tile);
    if constexpr (kRowTiles == 2) begin<1, 0>(tile);
    if constexpr (kRowTiles == 2 && kColumnTiles == 2) begin<1, 1>(tile);
    for (int64_t i = 0; i < tile.batch; ++i) {
      const auto* a = static_cast<const uint16_t*>(tile.a[i]);
      const auto* b = static_cast<const uint16_t*>(tile.b[i]);
      const int64_t a_bytes = tile.lda * 2, b_bytes = kNr * kKr * 2;
      for (int64_t p = 0; p < tile.k; p += kKMultiple, a += kKMultiple, b += kKMultiple * kNr) {
        if (ahead != nullptr) ahead = fetch(ahead, tile.prefetch_step);
        Tiles::template load<6>(b, b_bytes);
        Tiles::template load<4>(a, a_bytes);
        Tiles::template dot<0, 4, 6>();
        if constexpr (kColumnTiles == 2) {
          Tiles::template load<7>(b + kHalf * kKr, b_bytes);
          Tiles::template dot<1, 4, 7>();
        }
        if constexpr (kRowTiles == 2) {
          Tiles::template load<5>(a + kHalf * tile.lda, a_bytes);
          Tiles::template dot<2, 5, 6>();
        }
        if constexpr (kRowTiles == 2 && kColumnTiles == 2) Tiles::template dot<3, 5, 7>();
      }
    }
    end<0, 0>(tile);
    if constexpr (kColumnTiles == 2) end<0, 1>(tile);
    if constexpr (kRowTiles == 2) end<1, 0>(tile);
    if constexpr (kRowTiles == 2 && kColumnTiles == 2) end<1, 1>(tile);
  }

  /// Two steps of GemmTile::prefetch.
  static const char* fetch(const char* ahead, int64_t step) {
    for (int i = 0; i < 2; ++i, ahead += step)
      __builtin_prefetch(ahead, 0, 2), __builtin_prefetch(ahead + 64, 0, 2);
    return ahead;
  }

  static float* corner(const GemmTile& tile, int row, int column) {
    return static_cast<float*>(tile.c) + kHalf * (row * tile.ldc + column);
  }

  /// Tile (row, column) of C starts as C where it is whole, else as zero: see end().
  template <int row, int column>
  static void begin(const GemmTile& tile) {
    if (tile.accumulate && half(tile.n, column) == kHalf)
      Tiles::template load<2 * row + column>(corner(tile, row, column), tile.ldc * 4);
    else Tiles::template zero<2 * row + column>();
  }

  /// Where columns are missing the tile goes through a scratch.
  template <int row, int column>
  static void end(const GemmTile& tile) {
    const int64_t m = half(tile.m, row), n = half(tile.n, column);
    float* c = corner(tile, row, column);
    if (n == kHalf) return Tiles::template store<2 * row + column>(c, tile.ldc * 4);
    alignas(64) float scratch[kHalf][kHalf];
    Tiles::template store<2 * row + column>(scratch, sizeof scratch[0]);
    for (int64_t i = 0; i < m; ++i, c += tile.ldc)
      for (int64_t j = 0; j < n; ++j) c[j] = tile.accumulate ? c[j] + scratch[i][j] : scratch[i][j];
  }
};

}  // namespace quern::kernels
