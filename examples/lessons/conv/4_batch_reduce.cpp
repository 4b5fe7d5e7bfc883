// Step 4: the products of all taps are summed in registers. Nothing is packed but the filters, and
// each output is stored once.
#include <algorithm>
#include <vector>

#include "batch.h"
#include "padded.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/parallel.h"

namespace quern::lessons {

const BatchTile& best_batch_tile() {
#ifdef __aarch64__
  return kBatchTileNeon;
#else
  return isa_enabled(kWideIsa) ? kBatchTileAvx512 : kBatchTileAvx2;
#endif
}

void run_batch(const BatchTile& tile, const Batch& batch, int64_t n) {
  if (n >= tile.nr) return tile.run(batch);
  alignas(64) float whole[32 * 32];
  Batch all = batch;
  all.c = whole, all.ldc = tile.nr;
  tile.run(all);
  for (int64_t r = 0; r < batch.m; ++r)
    std::copy_n(whole + r * tile.nr, n, batch.c + r * batch.ldc);
}

namespace {

/// Of a filter of one pixel without stride and padding, the rows of all images are one row.
ConvProblem flat(ConvProblem p) {
  if (p.kh * p.kw > 1 || p.stride_h * p.stride_w > 1 || p.pad_h != 0 || p.pad_w != 0) return p;
  if (p.ih != p.oh || p.iw != p.ow) return p;
  p.iw = p.ow = p.n * p.oh * p.ow;
  p.n = p.ih = p.oh = 1;
  return p;
}

}  // namespace

void batch_reduce(const ConvProblem& problem, const float* x, const float* filters, float* y) {
  const ConvProblem p = flat(problem);
  const BatchTile& tile = best_batch_tile();
  const Padded padded(p, x);
  const int64_t area = p.kh * p.kw, panels = ceil_div(p.oc, tile.nr);
  const TilesOfRows tiles(p.n * p.oh, p.ow, tile.mr);
  // [batches]
  parallel_for(panels * tiles.cells(), [&](int64_t cell) {
    const int64_t panel = cell / tiles.cells(), o = panel * tile.nr;
    std::vector<const float*> a(area), b(area);
    for (int64_t tap = 0; tap < area; ++tap)
      b[tap] = filters + (panel * area + tap) * p.ic * tile.nr;
    tiles.each(cell % tiles.cells(), [&](int64_t row, int64_t ox, int64_t m) {
      for (int64_t tap = 0; tap < area; ++tap)
        a[tap] = padded.at(row / p.oh, row % p.oh * p.stride_h + tap / p.kw * p.dilation_h,
                           ox * p.stride_w + tap % p.kw * p.dilation_w);
      run_batch(tile,
                {.m = m,
                 .k = p.ic,
                 .count = area,
                 .a = a.data(),
                 .b = b.data(),
                 .a_row = p.stride_w * p.ic,
                 .a_step = 1,
                 .b_step = tile.nr,
                 .c = y + (row * p.ow + ox) * p.oc + o,
                 .ldc = p.oc},
                p.oc - o);
    });
  });
  // [end]
}

int64_t count_of_tiles(const ConvProblem& p) {
  return round_up(p.oc, best_batch_tile().nr) * p.ic * p.kh * p.kw;
}

/// [panel][tap][ic][nr]: all that a tile of outputs reads lies together. Zeros fill the last panel.
void filters_of_tiles(const ConvProblem& p, const float* w, float* filters) {
  const int64_t area = p.kh * p.kw, nr = best_batch_tile().nr;
  parallel_for(ceil_div(p.oc, nr), [&](int64_t panel) {
    float* const to = filters + panel * area * p.ic * nr;
    for (int64_t j = 0; j < nr; ++j)
      for (int64_t c = 0, o = panel * nr + j; c < p.ic; ++c)
        for (int64_t tap = 0; tap < area; ++tap)
          to[(tap * p.ic + c) * nr + j] = o < p.oc ? w[(o * p.ic + c) * area + tap] : 0;
  });
}

}  // namespace quern::lessons
