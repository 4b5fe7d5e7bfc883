// A strip: some tiles of rows by some panels of columns in one call of a micro-kernel, which
// completes each tile between the products of the next.
//
//               panel 0   panel 1   panel 2
//             ┌─────────┬─────────┬─────────┐
//    tile 0   │    0    │    2    │    4    │   m rows of A, kept in L1, meet one panel of B
//             ├─────────┼─────────┼─────────┤   after the other, so that whole rows of the output
//    tile 1   │    1    │    3    │    5    │   are written while they are near
//             └─────────┴─────────┴─────────┘
//
// Rows of a tile are neighbours in A, but need not be in the output: where A is a padded image, a
// tile runs on over the end of a row, and what it computes on the padding goes nowhere.
// Seen by files with ISA flags.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/epilogue.h"

namespace quern::kernels {

/// Columns of a strip, at most, by their drivers.
inline constexpr int64_t kStripColumns = 1024;

/// A row of a tile that is an output, `to` elements from the tile's first.
struct StripRow {
  int64_t row, to;
};

struct StripTile {
  int64_t a;    // from the strip's A, in elements
  int64_t out;  // from the epilogue's out, residual and x
  int64_t m;    // rows, 1..mr
  const StripRow* rows;
  int64_t outputs;  // how many of them
};

struct GemmStrip {
  const StripTile* tile;
  int64_t tiles, panels;
  int64_t n;      // columns of all panels; all but the last panel have nr
  int64_t k;      // of each product; a multiple of the kernel's k_multiple
  int64_t batch;  // number of products; may be 0
  const void* const* a;
  int64_t lda;
  const void* const* b;      // batch pointers to packed panels
  int64_t b_panel;           // elements from a panel to the next
  const Epilogue* epilogue;  // of the first panel
  /// Not null: sums are put here, [panel][tile][mr][nr], and not completed.
  float* sums = nullptr;
  /// What is read after it, to be prefetched to L2 a little at a time.
  const void* prefetch = nullptr;
  int64_t prefetch_bytes = 0;
  /// And rows of what its epilogue touches: so many, from the epilogue's out, residual and x.
  int64_t next_out = 0, next_rows = 0, next_stride = 0;
};

/// A tile of complete sums, [mr][nr].
struct SummedTile {
  const float* sums;
  const StripTile* tile;
  const Epilogue* epilogue;  // of the strip
  int64_t column, n;         // its first, from the strip's; how many
};
/// Completes the outputs [begin, end) of a tile.
using CompleteOutputs = void(const SummedTile&, int64_t begin, int64_t end);

}  // namespace quern::kernels
