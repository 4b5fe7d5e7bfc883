// Steps 4 to 7: the loops of step 3 around their tiles.
#include "loops.h"
#include "quern/tensor/cpu_features.h"

namespace quern::lessons {

void register_tile(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  five_loops(kVectorTile, size, a, b, c);
}
void wide_tile(Size size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c) {
  five_loops(kWideTile, size, a, b, c);
}
void pairs(Size size, Matrix<const bfloat16> a, Matrix<const bfloat16> b, Matrix<float> c) {
  five_loops(kPairTile, size, a, b, c);
}
void amx_tiles(Size size, Matrix<const bfloat16> a, Matrix<const bfloat16> b, Matrix<float> c) {
  five_loops(amx_or_loops(), size, a, b, c);
}

const Tile<float>& best_f32_tile() { return isa_enabled(kWideIsa) ? kWideTile : kVectorTile; }
const Tile<bfloat16>& best_bf16_tile() { return has_amx() ? amx_or_loops() : kPairTile; }

}  // namespace quern::lessons
