// Winograd's transforms on every instruction set.
#include <doctest/doctest.h>

#include <array>

#include "conv_cases.h"
#include "larger.h"
#include "quern/ops/kernels/conv/winograd/winograd.h"
#include "records.h"
#include "winograd_matrices.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

TEST_CASE("Transforms of 2×2 outputs equal the reference's on every instruction set") {
  // Integers, and multiples of a quarter: exact.
  constexpr int64_t tiles = 3, pitch = 41, width = 2 * tiles + 2;
  for (int64_t channels : {1, 7, 16, 24, 40}) {
    const auto results = [&](const WinogradKernel& kernel) {
      Buffer image(DType::f32, integers(4 * width * pitch, 1));
      Buffer filters(DType::f32, integers(2 * 9 * pitch, 2));
      Buffer m(DType::f32, integers(16 * tiles * pitch, 3));
      Buffer v(DType::f32, 16 * tiles * pitch), u(DType::f32, 16 * 2 * pitch),
          turned(DType::f32, 16 * 2 * pitch), y(DType::f32, 2 * 2 * tiles * pitch),
          dy(DType::f32, 16 * tiles * pitch), dg(DType::f32, 2 * 9 * pitch);
      const auto floats = [](void* p) { return static_cast<float*>(p); };
      WinogradTiles t{.from = floats(image.data()),
                      .to = floats(v.data()),
                      .row = width * pitch,
                      .pixel = pitch,
                      .point = tiles * pitch,
                      .tile = pitch,
                      .tiles = tiles,
                      .channels = channels};
      kernel.f2.source(t);
      t.to = floats(dy.data());
      kernel.f2.output_gradient(t);
      t.from = floats(m.data()), t.to = floats(y.data()), t.row = 2 * tiles * pitch;
      kernel.f2.output(t);
      WinogradFilters f{.from = floats(filters.data()),
                        .to = floats(u.data()),
                        .filter = 9 * pitch,
                        .tap = pitch,
                        .point = 2 * pitch,
                        .row = pitch,
                        .filters = 2,
                        .columns = channels};
      kernel.f2.weight(f);
      f.from += 8 * pitch, f.tap = -pitch, f.to = floats(turned.data());
      kernel.f2.weight(f);
      f.from = floats(m.data()), f.tap = pitch, f.to = floats(dg.data());
      kernel.f2.weight_gradient(f);
      for (const Buffer* b : {&v, &u, &turned, &y, &dy, &dg}) CHECK(b->guarded());
      return std::array{v.values(), u.values(),  turned.values(),
                        y.values(), dy.values(), dg.values()};
    };
    const auto expected = results(named(table<WinogradKernel>(), "winograd_reference"));
    each_runnable(table<WinogradKernel>(), [&](const WinogradKernel& kernel) {
      CAPTURE(std::string(kernel.name));
      CAPTURE(channels);
      CHECK(results(kernel) == expected);
    });
  }
}

TEST_CASE("Transforms of 4×4 outputs are their matrices' on every instruction set") {
  // Each input is rounded at most 14 times on its way through the reference: by a constant, a
  // product and 5 additions along an axis.
  constexpr int64_t tiles = 2, pitch = 23, points = 36;
  constexpr int64_t width = 4 * tiles + 2;
  const auto check = [&](const Matrix& l, auto from, auto to) {
    Matrix in(l[0].size(), std::vector<double>(l[0].size()));
    for (size_t i = 0; i < in.size(); ++i)
      for (size_t j = 0; j < in.size(); ++j) in[i][j] = from(i, j);
    const Matrix out = transform(l, in), size = transform(size_of(l), size_of(in));
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i)
      for (size_t j = 0; j < out.size(); ++j)
        worst = test::larger(worst, std::abs(to(i, j) - out[i][j]) / (15 * kRoundoff * size[i][j]));
    CHECK(worst <= 1.0);
  };
  each_runnable(table<WinogradKernel>(), [&](const WinogradKernel& kernel) {
    for (int64_t channels : {1, 16, 23}) {
      CAPTURE(channels);
      Buffer image(DType::f32, waves(6 * width * pitch, 1)),
          m(DType::f32, waves(points * tiles * pitch, 2));
      Buffer filters(DType::f32, waves(2 * 9 * pitch, 3));
      Buffer v(DType::f32, points * tiles * pitch), y(DType::f32, 4 * 4 * tiles * pitch),
          u(DType::f32, points * 2 * pitch);
      const auto floats = [](Buffer& b) { return static_cast<float*>(b.data()); };
      WinogradTiles t{.from = floats(image),
                      .to = floats(v),
                      .row = width * pitch,
                      .pixel = pitch,
                      .point = tiles * pitch,
                      .tile = pitch,
                      .tiles = tiles,
                      .channels = channels};
      kernel.f4.source(t);
      t.from = floats(m), t.to = floats(y), t.row = 4 * tiles * pitch;
      kernel.f4.output(t);
      kernel.f4.weight({.from = floats(filters),
                        .to = floats(u),
                        .filter = 9 * pitch,
                        .tap = pitch,
                        .point = 2 * pitch,
                        .row = pitch,
                        .filters = 2,
                        .columns = channels});
      for (const Buffer* b : {&v, &y, &u}) CHECK(b->guarded());
      const auto at = [&](Buffer& b, size_t row, size_t columns, size_t column, int64_t c) {
        return static_cast<double>(static_cast<float*>(
            b.data())[(row * columns + column) * pitch + static_cast<size_t>(c)]);
      };
      for (int64_t c = 0; c < channels; ++c)
        for (size_t tile = 0; tile < tiles; ++tile) {
          check(
              kF4.bt, [&](size_t i, size_t j) { return at(image, i, width, 4 * tile + j, c); },
              [&](size_t i, size_t j) { return at(v, 6 * i + j, tiles, tile, c); });
          check(
              kF4.at, [&](size_t i, size_t j) { return at(m, 6 * i + j, tiles, tile, c); },
              [&](size_t i, size_t j) { return at(y, i, 4 * tiles, 4 * tile + j, c); });
          check(
              kF4.g, [&](size_t i, size_t j) { return at(filters, tile, 9, 3 * i + j, c); },
              [&](size_t i, size_t j) { return at(u, 6 * i + j, 2, tile, c); });
        }
    }
  });
}
