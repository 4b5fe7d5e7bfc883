// Step 4's tile for 16 registers: 6 rows of 2 vectors.
#include "4_tile_simd.h"

namespace quern::lessons {
constinit const BatchTile kBatchTileAvx2 = batch_tile<6, 2>;
}  // namespace quern::lessons
