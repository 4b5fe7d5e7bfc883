// What steps 4 to 7 share around the batch-reduce tile.
#pragma once
#include <algorithm>

#include "4_tile.h"
#include "conv.h"
#include "gemm/gemm.h"
#include "quern/tensor/divide.h"

namespace quern::lessons {

/// The fastest that this CPU runs.
const BatchTile& best_batch_tile();

/// A tile of which C may have only n columns.
void run_batch(const BatchTile& tile, const Batch& batch, int64_t n);

/// Rows of pixels cut into tiles of at most `mr` neighbours, and these into cells for the threads.
struct TilesOfRows {
  TilesOfRows(int64_t rows, int64_t length, int64_t mr)
      : length(length), a_row(ceil_div(length, mr)), count(rows * a_row) {}
  int64_t cells() const { return ceil_div(count, kTiles); }
  /// f(row, first pixel, pixels) for each tile of a cell.
  template <class F>
  void each(int64_t cell, F f) const {
    for (int64_t i = cell * kTiles; i < std::min(count, (cell + 1) * kTiles); ++i) {
      const int64_t piece = i % a_row, begin = length * piece / a_row;
      f(i / a_row, begin, length * (piece + 1) / a_row - begin);
    }
  }
  static constexpr int64_t kTiles = 16;
  int64_t length, a_row, count;
};

}  // namespace quern::lessons
