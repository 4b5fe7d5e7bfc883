// Winograd's transforms as the formula has them: two matrix products an element.
#include "quern/ops/kernels/conv/winograd_registry.h"

namespace quern::kernels {
namespace {

constexpr float kBt[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
constexpr float kG[4][3] = {{1, 0, 0}, {.5f, .5f, .5f}, {.5f, -.5f, .5f}, {0, 0, 1}};
constexpr float kGt[3][4] = {{1, .5f, .5f, 0}, {0, .5f, -.5f, 0}, {0, .5f, .5f, 1}};
constexpr float kAt[2][4] = {{1, 1, 1, 0}, {0, 1, -1, -1}};
constexpr float kA[4][2] = {{1, 0}, {1, 1}, {1, -1}, {0, -1}};

/// to(i, j, (L·from·Lᵀ)[i][j]); what L has a zero for isn't read, so that an infinity there stays out.
template <int rows, int columns, class From, class To>
void transform(const float (&l)[rows][columns], From from, To to) {
  const auto product = [](const float(&row)[columns], auto at) {
    float sum = 0;
    for (int k = 0; k < columns; ++k)
      if (row[k] != 0) sum += row[k] * at(k);
    return sum;
  };
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < rows; ++j)
      to(i, j,
         product(l[j], [&](int s) { return product(l[i], [&](int r) { return from(r, s); }); }));
}

void source(const WinogradTiles& t) {
  for (int64_t tile = 0; tile < t.tiles; ++tile)
    for (int64_t c = 0; c < t.channels; ++c)
      transform(
          kBt, [&](int r, int s) { return t.from[r * t.row + (2 * tile + s) * t.pixel + c]; },
          [&](int i, int j, float v) { t.to[(4 * i + j) * t.point + tile * t.tile + c] = v; });
}

void weight(const WinogradFilters& w) {
  for (int64_t k = 0; k < w.filters; ++k)
    for (int64_t c = 0; c < w.columns; ++c)
      transform(
          kG, [&](int r, int s) { return w.from[k * w.filter + (3 * r + s) * w.tap + c]; },
          [&](int i, int j, float v) { w.to[(4 * i + j) * w.point + k * w.row + c] = v; });
}

void output(const WinogradTiles& t) {
  for (int64_t tile = 0; tile < t.tiles; ++tile)
    for (int64_t c = 0; c < t.channels; ++c)
      transform(
          kAt, [&](int r, int s) { return t.from[(4 * r + s) * t.point + tile * t.tile + c]; },
          [&](int i, int j, float v) { t.to[i * t.row + (2 * tile + j) * t.pixel + c] = v; });
}

void output_gradient(const WinogradTiles& t) {
  for (int64_t tile = 0; tile < t.tiles; ++tile)
    for (int64_t c = 0; c < t.channels; ++c)
      transform(
          kA, [&](int r, int s) { return t.from[r * t.row + (2 * tile + s) * t.pixel + c]; },
          [&](int i, int j, float v) { t.to[(4 * i + j) * t.point + tile * t.tile + c] = v; });
}

void weight_gradient(const WinogradFilters& w) {
  for (int64_t k = 0; k < w.filters; ++k)
    for (int64_t c = 0; c < w.columns; ++c)
      transform(
          kGt, [&](int r, int s) { return w.from[(4 * r + s) * w.point + k * w.row + c]; },
          [&](int i, int j, float v) { w.to[k * w.filter + (3 * i + j) * w.tap + c] = v; });
}

}  // namespace

constinit const WinogradKernel conv_winograd_reference{
    "conv_winograd_reference", Isa::portable,  source, weight, output,
    output_gradient,           weight_gradient};

}  // namespace quern::kernels
