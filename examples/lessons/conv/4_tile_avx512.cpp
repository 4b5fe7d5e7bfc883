// Step 4's tile for 32 registers: 14 rows of 2 vectors.
#include "4_tile_simd.h"

namespace quern::lessons {
constinit const BatchTile kBatchTileAvx512 = batch_tile<14, 2>;
}  // namespace quern::lessons
