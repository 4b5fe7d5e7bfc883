// Step 4's tile for 32 registers: 8 rows of 3 vectors.
#include "4_tile_simd.h"

namespace quern::lessons {
constinit const BatchTile kBatchTileNeon = batch_tile<8, 3>;
}  // namespace quern::lessons
