// Step 3: channels innermost. Pixels are rows of A now, and the filters are B: vectors lie along
// channels, however short a row of the image is, and a stride is a distance between rows of A.
#include <algorithm>

#include "conv.h"
#include "gemm/loops.h"
#include "padded.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {

// [rows]
/// A row of outputs [ow × oc] = Σ over taps of
/// x[ow × ic, from the tap's pixel on] · w[tap][ic × oc].
void channels_last(const ConvProblem& p, const float* x, const float* filters, float* y) {
  const Tile<float>& tile = best_f32_tile();
  const Padded padded(p, x);
  const int64_t of_tap = round_up(p.oc, tile.nr) * p.ic;
  std::fill_n(y, p.n * p.oh * p.ow * p.oc, 0.0f);
  parallel_for(p.n * p.oh, [&](int64_t row) {
    const Workspace room(round_up(p.ow, tile.mr) * p.ic * int64_t{sizeof(float)});
    float* const packed = room.as<float>();
    for (int64_t tap = 0; tap < p.kh * p.kw; ++tap) {
      const int64_t r = tap / p.kw, q = tap % p.kw;
      const Matrix<const float> pixels{
          padded.at(row / p.oh, row % p.oh * p.stride_h + r * p.dilation_h, q * p.dilation_w),
          p.stride_w * p.ic};
      pack_a(tile, p.ow, p.ic, pixels, packed);
      macro_kernel(tile, {p.ow, p.oc, p.ic}, packed, filters + tap * of_tap,
                   {y + row * p.ow * p.oc, p.oc});
    }
  });
}
// [end]

int64_t count_in_panels(const ConvProblem& p) {
  return p.kh * p.kw * round_up(p.oc, best_f32_tile().nr) * p.ic;
}

// [filters]
/// For each tap, B[ic × oc] in panels of nr filters: once a step of training, not once a product.
void filters_in_panels(const ConvProblem& p, const float* w, float* filters) {
  const Tile<float>& tile = best_f32_tile();
  const int64_t area = p.kh * p.kw, panels = ceil_div(p.oc, tile.nr);
  parallel_for(area * panels, [&](int64_t cell) {
    const int64_t tap = cell / panels, first = cell % panels * tile.nr;
    const int64_t used = std::min<int64_t>(tile.nr, p.oc - first);
    const Workspace room(p.ic * used * int64_t{sizeof(float)});
    const Matrix<float> b{room.as<float>(), used};
    for (int64_t o = 0; o < used; ++o)
      for (int64_t c = 0; c < p.ic; ++c) b[c][o] = w[((first + o) * p.ic + c) * area + tap];
    pack_b<float>(tile, used, p.ic, {b.data, used}, filters + cell * p.ic * tile.nr);
  });
}
// [end]

}  // namespace quern::lessons
