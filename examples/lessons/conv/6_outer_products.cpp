// Step 6: the gradient of the filters. Its sums run over pixels, and channels are innermost: each
// pixel adds the product of a column of dy and a row of x, an outer product, to the tile.
#include <algorithm>
#include <vector>

#include "batch.h"
#include "padded.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

// [panels]
/// Pixels [count][channels] as panels of `width` channels:
/// [panel][count][width], filled up by zeros.
class Panels {
 public:
  Panels(int64_t count, int64_t channels, int64_t width, const float* pixels)
      : count_(count),
        width_(width),
        copy_(ceil_div(channels, width) * count * width * int64_t{sizeof(float)}) {
    parallel_for(ceil_div(channels, width), [&](int64_t panel) {
      const int64_t first = panel * width, used = std::min(width, channels - first);
      float* to = copy_.as<float>() + panel * count * width;
      for (int64_t i = 0; i < count; ++i, to += width) {
        std::copy_n(pixels + i * channels + first, used, to);
        std::fill_n(to + used, width - used, 0.0f);
      }
    });
  }
  const float* at(int64_t panel, int64_t pixel) const {
    return copy_.as<float>() + (panel * count_ + pixel) * width_;
  }

 private:
  int64_t count_, width_;
  Workspace copy_;
};
// [end]

}  // namespace

// [outer products]
/// For each tap, dw[oc × ic] = Σ over rows of outputs of dyᵀ[oc × ow] · x[ow × ic].
void gradient_by_outer_products(const ConvProblem& p, const float* x, const float* dy, float* dw) {
  const BatchTile& tile = best_batch_tile();
  const int64_t area = p.kh * p.kw, rows = p.n * p.oh;
  const int64_t down = ceil_div(p.oc, tile.mr), across = ceil_div(p.ic, tile.nr);
  const Padded padded(p, x);
  const Panels left(rows * p.ow, p.oc, tile.mr, dy);
  const Panels right(p.n * padded.height * padded.width, p.ic, tile.nr, padded.at(0, 0, 0));
  parallel_for(down * across * area, [&](int64_t cell) {
    const int64_t i = cell / area / across, j = cell / area % across, tap = cell % area;
    std::vector<const float*> a(rows), b(rows);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t iy = row % p.oh * p.stride_h + tap / p.kw * p.dilation_h;
      const int64_t line = row / p.oh * padded.height + iy;
      a[row] = left.at(i, row * p.ow);
      b[row] = right.at(j, line * padded.width + tap % p.kw * p.dilation_w);
    }
    float sums[32][32];
    tile.run({.m = tile.mr,
              .k = p.ow,
              .count = rows,
              .a = a.data(),
              .b = b.data(),
              .a_row = 1,
              .a_step = tile.mr,
              .b_step = p.stride_w * tile.nr,
              .c = sums[0],
              .ldc = 32});
    for (int64_t o = i * tile.mr; o < std::min(p.oc, (i + 1) * tile.mr); ++o)
      for (int64_t c = j * tile.nr; c < std::min(p.ic, (j + 1) * tile.nr); ++c)
        dw[(o * p.ic + c) * area + tap] = sums[o - i * tile.mr][c - j * tile.nr];
  });
}
// [end]

}  // namespace quern::lessons
