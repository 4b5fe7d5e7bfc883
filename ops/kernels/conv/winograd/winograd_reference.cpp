// Winograd's transforms as the formula has them: two matrix products an element.
#include "quern/ops/kernels/conv/winograd/winograd_kernel.h"

namespace quern::kernels {
namespace {

template <int rows, int columns>
struct Matrix {
  double at[rows][columns];
};

template <int rows, int columns>
constexpr Matrix<columns, rows> transposed(const Matrix<rows, columns>& m) {
  Matrix<columns, rows> t{};
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) t.at[j][i] = m.at[i][j];
  return t;
}

struct F2 {
  static constexpr int outputs = 2, points = 4;
  static constexpr Matrix<4, 4> bt{{{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}}};
  static constexpr Matrix<4, 3> g{{{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}}};
  static constexpr Matrix<2, 4> at{{{1, 1, 1, 0}, {0, 1, -1, -1}}};
};

struct F4 : Winograd4 {
  static constexpr int outputs = 4, points = 6;
  static constexpr Matrix<6, 6> bt{{{1, 0, -q, 0, 1, 0},
                                    {0, -a* b2, -b2, a, 1, 0},
                                    {0, a* b2, -b2, -a, 1, 0},
                                    {0, -a2* b, -a2, b, 1, 0},
                                    {0, a2* b, -a2, -b, 1, 0},
                                    {0, 1, 0, -q, 0, 1}}};
  static constexpr Matrix<6, 3> g{{{1, 0, 0},
                                   {1 / alpha, a / alpha, a2 / alpha},
                                   {1 / alpha, -a / alpha, a2 / alpha},
                                   {1 / beta, b / beta, b2 / beta},
                                   {1 / beta, -b / beta, b2 / beta},
                                   {0, 0, 1}}};
  static constexpr Matrix<4, 6> at{
      {{1, 1, 1, 1, 1, 0}, {0, a, -a, b, -b, 0}, {0, a2, a2, b2, b2, 0}, {0, a3, -a3, b3, -b3, 1}}};
};

/// to(i, j, (L·from·Lᵀ)[i][j]); what L has a zero for isn't read, so that an infinity there stays
/// out.
template <int rows, int columns, class From, class To>
void transform(const Matrix<rows, columns>& l, From from, To to) {
  const auto product = [](const double(&row)[columns], auto at) {
    float sum = 0;
    for (int k = 0; k < columns; ++k)
      if (row[k] != 0) sum += static_cast<float>(row[k]) * at(k);
    return sum;
  };
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < rows; ++j)
      to(i, j, product(l.at[j], [&](int s) {
           return product(l.at[i], [&](int r) { return from(r, s); });
         }));
}

/// Pixels of tiles to matrices.
template <class F, int rows, int columns>
void to_points(const Matrix<rows, columns>& l, const WinogradTiles& t) {
  for (int64_t tile = 0; tile < t.tiles; ++tile)
    for (int64_t c = 0; c < t.channels; ++c)
      transform(
          l,
          [&](int r, int s) { return t.from[r * t.row + (F::outputs * tile + s) * t.pixel + c]; },
          [&](int i, int j, float v) {
            t.to[(F::points * i + j) * t.point + tile * t.tile + c] = v;
          });
}

template <class F>
void source(const WinogradTiles& t) {
  to_points<F>(F::bt, t);
}

template <class F>
void output_gradient(const WinogradTiles& t) {
  to_points<F>(transposed(F::at), t);
}

template <class F>
void output(const WinogradTiles& t) {
  for (int64_t tile = 0; tile < t.tiles; ++tile)
    for (int64_t c = 0; c < t.channels; ++c)
      transform(
          F::at,
          [&](int r, int s) { return t.from[(F::points * r + s) * t.point + tile * t.tile + c]; },
          [&](int i, int j, float v) {
            t.to[i * t.row + (F::outputs * tile + j) * t.pixel + c] = v;
          });
}

template <class F>
void weight(const WinogradFilters& w) {
  for (int64_t k = 0; k < w.filters; ++k)
    for (int64_t c = 0; c < w.columns; ++c)
      transform(
          F::g, [&](int r, int s) { return w.from[k * w.filter + (3 * r + s) * w.tap + c]; },
          [&](int i, int j, float v) { w.to[(F::points * i + j) * w.point + k * w.row + c] = v; });
}

template <class F>
void weight_gradient(const WinogradFilters& w) {
  for (int64_t k = 0; k < w.filters; ++k)
    for (int64_t c = 0; c < w.columns; ++c)
      transform(
          transposed(F::g),
          [&](int r, int s) { return w.from[(F::points * r + s) * w.point + k * w.row + c]; },
          [&](int i, int j, float v) { w.to[k * w.filter + (3 * i + j) * w.tap + c] = v; });
}

constexpr WinogradKernel kRecords[] = {
    {QUERN_NAMED("winograd"),
     kIsa,
     {2, source<F2>, weight<F2>, output<F2>, output_gradient<F2>, weight_gradient<F2>},
     {4, source<F4>, weight<F4>, output<F4>, nullptr, nullptr}}};

}  // namespace

QUERN_KERNELS(WinogradKernel, winograd, kRecords)

}  // namespace quern::kernels
