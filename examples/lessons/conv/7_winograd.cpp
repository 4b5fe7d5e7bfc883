// Step 7: Winograd's minimal filtering F(4×4, 3×3) (Lavin & Gray,
// "Fast algorithms for convolutional neural networks", arXiv:1509.09308):
// tiles of 4×4 outputs by 36 multiplications instead of 144.
#include <algorithm>

#include "7_transforms.h"
#include "batch.h"
#include "padded.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

constexpr int64_t kOutputs = 4, kPoints = 36;

const WinogradTransforms& best_transforms() {
#ifdef __aarch64__
  return kTransformsNeon;
#else
  return isa_enabled(kWideIsa) ? kTransformsAvx512 : kTransformsAvx2;
#endif
}

/// The problem with whole tiles of outputs.
ConvProblem in_tiles(ConvProblem p) {
  p.oh = round_up(p.oh, kOutputs), p.ow = round_up(p.ow, kOutputs);
  return p;
}

/// The outputs of tile (i, j) that exist, of n channels from o on: from [4][4][nr].
void store_tile(const ConvProblem& p, const float* from, int64_t nr, int64_t image, int64_t i,
                int64_t j, int64_t o, float* y) {
  for (int64_t a = 0; a < kOutputs && i * kOutputs + a < p.oh; ++a)
    for (int64_t b = 0; b < kOutputs && j * kOutputs + b < p.ow; ++b)
      std::copy_n(from + (kOutputs * a + b) * nr, std::min(nr, p.oc - o),
                  y + ((image * p.oh + i * kOutputs + a) * p.ow + j * kOutputs + b) * p.oc + o);
}

}  // namespace

void winograd(const ConvProblem& p, const float* x, const float* filters, float* y) {
  const BatchTile& gemm = best_batch_tile();
  const WinogradTransforms& transforms = best_transforms();
  const Padded padded(in_tiles(p), x);
  const int64_t down = ceil_div(p.oh, kOutputs), across = ceil_div(p.ow, kOutputs);
  const int64_t tiles = p.n * down * across;
  const Workspace room(kPoints * tiles * p.ic * int64_t{sizeof(float)});
  float* const v = room.as<float>();  // [point][tile][ic]
  // [winograd]
  parallel_for(p.n * down, [&](int64_t row) {
    for (int64_t j = 0; j < across; ++j)
      transforms.source(p.ic, padded.at(row / down, row % down * kOutputs, j * kOutputs),
                        padded.width * p.ic, v + (row * across + j) * p.ic, tiles * p.ic);
  });
  constexpr int64_t kBlock = 28;  // tiles, whose products with a panel stay in L2
  const int64_t blocks = ceil_div(tiles, kBlock), panels = ceil_div(p.oc, gemm.nr);
  parallel_for(panels * blocks, [&](int64_t cell) {
    const int64_t panel = cell / blocks, block = cell % blocks;
    const int64_t begin = tiles * block / blocks, count = tiles * (block + 1) / blocks - begin;
    const Workspace products((kPoints * count + kOutputs * kOutputs) * gemm.nr *
                             int64_t{sizeof(float)});
    float *const m = products.as<float>(), *const outputs = m + kPoints * count * gemm.nr;
    for (int64_t point = 0; point < kPoints; ++point) {
      const float* const b = filters + (panel * kPoints + point) * p.ic * gemm.nr;
      const TilesOfRows rows(1, count, gemm.mr);
      for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t first = count * i / rows.count;
        const float* const a = v + (point * tiles + begin + first) * p.ic;
        gemm.run({.m = count * (i + 1) / rows.count - first,
                  .k = p.ic,
                  .count = 1,
                  .a = &a,
                  .b = &b,
                  .a_row = p.ic,
                  .a_step = 1,
                  .b_step = gemm.nr,
                  .c = m + (point * count + first) * gemm.nr,
                  .ldc = gemm.nr});
      }
    }
    for (int64_t i = 0, tile = begin; i < count; ++i, ++tile) {
      transforms.output(gemm.nr, m + i * gemm.nr, count * gemm.nr, outputs);
      store_tile(p, outputs, gemm.nr, tile / (down * across), tile / across % down, tile % across,
                 panel * gemm.nr, y);
    }
  });
  // [end]
}

int64_t count_of_points(const ConvProblem& p) {
  return kPoints * round_up(p.oc, best_batch_tile().nr) * p.ic;
}

/// G·g·Gᵀ of each filter and channel: [panel][point][ic][nr], a panel's filters side by side.
void filters_of_points(const ConvProblem& p, const float* w, float* filters) {
  constexpr float kG[6][3] = {{1.f / 4, 0, 0},
                              {-1.f / 6, -1.f / 6, -1.f / 6},
                              {-1.f / 6, 1.f / 6, -1.f / 6},
                              {1.f / 24, 1.f / 12, 1.f / 6},
                              {1.f / 24, -1.f / 12, 1.f / 6},
                              {0, 0, 1}};
  constexpr int64_t kMost = 32;
  const int64_t nr = best_batch_tile().nr, panels = ceil_div(p.oc, nr);
  parallel_for(panels * p.ic, [&](int64_t cell) {
    const int64_t panel = cell / p.ic, c = cell % p.ic;
    float g[9][kMost] = {}, half[6][3][kMost];
    for (int64_t o = 0; o < std::min(nr, p.oc - panel * nr); ++o)
      for (int64_t tap = 0; tap < 9; ++tap) g[tap][o] = w[((panel * nr + o) * p.ic + c) * 9 + tap];
    for (int i = 0; i < 6; ++i)
      for (int s = 0; s < 3; ++s)
        for (int64_t o = 0; o < kMost; ++o)
          half[i][s][o] = kG[i][0] * g[s][o] + kG[i][1] * g[3 + s][o] + kG[i][2] * g[6 + s][o];
    for (int64_t point = 0; point < kPoints; ++point) {
      const auto& row = half[point / 6];
      const auto& k = kG[point % 6];
      float* const to = filters + ((panel * kPoints + point) * p.ic + c) * nr;
      for (int64_t o = 0; o < nr; ++o)
        to[o] = row[0][o] * k[0] + row[1][o] * k[1] + row[2][o] * k[2];
    }
  });
}

}  // namespace quern::lessons
