// Solutions of the exercises of the lesson on convolution, step by step.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "conv/batch.h"
#include "conv/ladder.h"
#include "quern/ops/kernels/conv/axis.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::lessons;

namespace {

using Floats = std::vector<float>;

/// -3 ... 3: f32 holds all their products and sums.
Floats integers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 7) - 3;
  return values;
}

/// A layer of `channels` channels whose outputs are size × size.
ConvProblem layer(int64_t channels, int64_t size, int64_t kernel, int64_t stride = 1) {
  const int64_t input = stride * size;
  return {.n = 2,
          .ic = channels,
          .ih = input,
          .iw = input,
          .oc = channels + 1,
          .oh = size,
          .ow = size,
          .kh = kernel,
          .kw = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .pad_h = kernel / 2,
          .pad_w = kernel / 2,
          .dilation_h = 1,
          .dilation_w = 1,
          .groups = 1,
          .dtype = DType::f32,
          .format = MemoryFormat::contiguous};
}
int64_t items_of_x(const ConvProblem& p) { return p.n * p.ic * p.ih * p.iw; }
int64_t items_of_y(const ConvProblem& p) { return p.n * p.oc * p.oh * p.ow; }
int64_t items_of_w(const ConvProblem& p) { return p.oc * p.ic * p.kh * p.kw; }

/// [n][c][pixels] to [n][pixels][c].
Floats in_channels_last(const Floats& x, int64_t n, int64_t channels) {
  const auto count = static_cast<size_t>(n * channels), c = static_cast<size_t>(channels);
  const size_t pixels = x.size() / count;
  Floats to(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    to[(i / (c * pixels) * pixels + i % pixels) * c + i / pixels % c] = x[i];
  return to;
}

bool has_vectors() {
  if (!isa_enabled(kVectorIsa)) MESSAGE("skipped: ", why_disabled(kVectorIsa));
  return isa_enabled(kVectorIsa);
}

}  // namespace

// Step 0.

TEST_CASE("conv 0.1 The share of a filter's taps that lie on no padding") {
  const auto live = [](int64_t size) {  // of a 3×3 filter with padding 1
    const double taps = static_cast<double>(3 * size - 2) / static_cast<double>(3 * size);
    return taps * taps;
  };
  CHECK(live(14) == doctest::Approx(1600.0 / 1764));
  CHECK(live(7) == doctest::Approx(361.0 / 441));
  CHECK(live(1) == doctest::Approx(1.0 / 9));
}

TEST_CASE("conv 0.2 The input's gradient: each output gives to the pixels that it read") {
  for (int64_t stride : {1, 2}) {
    const ConvProblem p = layer(3, 5, 3, stride);
    const Floats dy = integers(items_of_y(p), 1), w = integers(items_of_w(p), 2);
    Floats dx(static_cast<size_t>(items_of_x(p)));
    for (int64_t n = 0; n < p.n; ++n)
      for (int64_t o = 0; o < p.oc; ++o)
        for (int64_t oy = 0; oy < p.oh; ++oy)
          for (int64_t ox = 0; ox < p.ow; ++ox)
            for (int64_t c = 0; c < p.ic; ++c)
              for (int64_t r = 0; r < p.kh; ++r)
                for (int64_t q = 0; q < p.kw; ++q) {
                  const int64_t iy = oy * stride - p.pad_h + r, ix = ox * stride - p.pad_w + q;
                  if (iy < 0 || iy >= p.ih || ix < 0 || ix >= p.iw) continue;
                  dx[static_cast<size_t>(((n * p.ic + c) * p.ih + iy) * p.iw + ix)] +=
                      dy[static_cast<size_t>(((n * p.oc + o) * p.oh + oy) * p.ow + ox)] *
                      w[static_cast<size_t>(((o * p.ic + c) * p.kh + r) * p.kw + q)];
                }
    const auto plan =
        kernels::plan_conv({p, ConvPass::dgrad, &kernels::conv_kernel("lesson_conv_0"),
                            &kernels::select_gemm_kernel(DType::f32)});
    Floats packed(static_cast<size_t>(plan->packed_bytes()) / sizeof(float)), got(dx.size());
    plan->pack(w.data(), DType::f32, packed.data());
    plan->run(dy.data(), packed.data(), got.data());
    CHECK(got == dx);
  }
}

// Step 1.

TEST_CASE("conv 1.1 How many times the pixels the columns are") {
  const auto times = [](const ConvProblem& p) {
    return static_cast<double>(p.kh * p.kw * p.oh * p.ow) / static_cast<double>(p.ih * p.iw);
  };
  CHECK(times(layer(256, 14, 3)) == 9);
  CHECK(times(layer(256, 14, 3, 2)) == 2.25);
  CHECK(times(layer(3, 112, 7, 2)) == 12.25);  // the first layer
  CHECK(times(layer(256, 14, 1)) == 1);
}

TEST_CASE("conv 1.2 The columns of a 1×1 filter are x: a product alone") {
  if (!has_vectors()) return;
  const ConvProblem p = layer(5, 6, 1);
  const Floats x = integers(items_of_x(p), 1), w = integers(items_of_w(p), 2);
  Floats expected(static_cast<size_t>(items_of_y(p))), y(expected.size());
  im2col_product(p, x.data(), w.data(), expected.data());
  const int64_t pixels = p.oh * p.ow;
  for (int64_t n = 0; n < p.n; ++n)
    threads_f32({p.oc, pixels, p.ic}, {w.data(), p.ic}, {x.data() + n * p.ic * pixels, pixels},
                {y.data() + n * p.oc * pixels, pixels});
  CHECK(y == expected);
}

// Step 2.

TEST_CASE("conv 2.1 The share of a run that is outputs") {
  const auto useful = [](int64_t size) {  // rows of size + 2 pixels
    const int64_t run = (size - 1) * (size + 2) + size;
    return static_cast<double>(size * size) / static_cast<double>(run);
  };
  CHECK(useful(56) == doctest::Approx(3136.0 / 3246));
  CHECK(useful(14) == doctest::Approx(196.0 / 222));
  CHECK(useful(7) == doctest::Approx(49.0 / 61));
}

TEST_CASE("conv 2.2 How many planes taps read along an axis") {
  const auto planes = [](int64_t kernel, int64_t stride, int64_t dilation) {
    std::vector<bool> read(static_cast<size_t>(stride));
    for (int64_t r = 0; r < kernel; ++r) read[static_cast<size_t>(r * dilation % stride)] = true;
    return std::ranges::count(read, true);
  };
  for (int64_t kernel : {1, 2, 3, 5})
    for (int64_t stride : {1, 2, 3, 4})
      for (int64_t dilation : {1, 2, 3, 4}) {
        const auto axis = kernels::forward_axis(40, 5, kernel, stride, 0, dilation);
        CHECK(planes(kernel, stride, dilation) == axis.planes);
      }
  CHECK(planes(3, 2, 2) == 1);
}

// Step 3.

TEST_CASE("conv 3.1 The share of vectors that is useful, along a row and along channels") {
  const auto useful = [](int64_t n) {
    return static_cast<double>(n) / static_cast<double>(round_up(n, 16));
  };
  CHECK(useful(56) == doctest::Approx(0.875));
  CHECK(useful(14) == doctest::Approx(0.875));
  CHECK(useful(7) == doctest::Approx(0.4375));
  for (int64_t channels : {64, 128, 256, 512}) CHECK(useful(channels) == 1);
}

TEST_CASE("conv 3.2 A change of format, and the same convolution in it") {
  if (!has_vectors()) return;
  const ConvProblem p = layer(5, 6, 3, 2);
  const Floats x = integers(items_of_x(p), 1), w = integers(items_of_w(p), 2);
  Floats expected(static_cast<size_t>(items_of_y(p))), y(expected.size());
  seven_loops(p, x.data(), w.data(), expected.data());
  Floats filters(static_cast<size_t>(count_in_panels(p)));
  filters_in_panels(p, w.data(), filters.data());
  channels_last(p, in_channels_last(x, p.n, p.ic).data(), filters.data(), y.data());
  CHECK(y == in_channels_last(expected, p.n, p.oc));
}

// Step 4.

TEST_CASE("conv 4.1 Bytes that go to the outputs and back") {
  const auto of_step_3 = [](const ConvProblem& p) {  // loaded and stored for each tap, after zeros
    return 4 * items_of_y(p) * (2 * p.kh * p.kw + 1);
  };
  const auto of_step_4 = [](const ConvProblem& p) { return 4 * items_of_y(p); };
  const ConvProblem p = layer(256, 14, 3);
  CHECK(of_step_3(p) == 19 * of_step_4(p));
}

TEST_CASE("conv 4.2 A batch of products is one product of a longer k") {
  if (!has_vectors()) return;
  const BatchTile& tile = best_batch_tile();
  const int64_t m = tile.mr, nr = tile.nr, k = 24;
  const Floats a = integers(m * k, 1), b = integers(k * nr, 2);
  const auto product = [&](int64_t pieces) {
    std::vector<const float*> left, right;
    for (int64_t i = 0; i < pieces; ++i) {
      left.push_back(a.data() + i * k / pieces);
      right.push_back(b.data() + i * k / pieces * nr);
    }
    Floats c(static_cast<size_t>(m * nr));
    tile.run({.m = m,
              .k = k / pieces,
              .count = pieces,
              .a = left.data(),
              .b = right.data(),
              .a_row = k,
              .a_step = 1,
              .b_step = nr,
              .c = c.data(),
              .ldc = nr});
    return c;
  };
  CHECK(product(1) == product(3));
  CHECK(product(1) == product(24));
}

// Step 5.

TEST_CASE("conv 5.1 How many times the products of the phases those with zeros between are") {
  const auto times = [](int64_t kernel, int64_t stride) {  // along an axis
    const auto axis = kernels::dgrad_axis(24 * stride, 24, kernel, stride, kernel / 2, 1);
    int64_t taps = 0;
    for (int64_t i = 0; i < axis.phases(); ++i) taps += axis.phase(i).taps;
    return static_cast<double>(kernel * stride) / static_cast<double>(taps);
  };
  CHECK(times(3, 2) * times(3, 2) == 4);
  CHECK(times(7, 2) * times(7, 2) == 4);
  CHECK(times(5, 3) * times(5, 3) == 9);  // whatever the filter: each tap is in one phase
}

TEST_CASE("conv 5.2 Pixels of dx that no output has read") {
  const auto phases_without_taps = [](int64_t kernel, int64_t stride) {
    const auto axis = kernels::dgrad_axis(8 * stride, 8, kernel, stride, 0, 1);
    int64_t with = 0;
    for (int64_t i = 0; i < axis.phases(); ++i) with += axis.phase(i).taps > 0;
    return stride * stride - with * with;
  };
  CHECK(phases_without_taps(1, 2) == 3);
  CHECK(phases_without_taps(2, 3) == 5);
  CHECK(phases_without_taps(3, 2) == 0);
}

// Step 6.

TEST_CASE("conv 6.1 Cells of the gradient of filters") {
  const auto cells = [](int64_t oc, int64_t ic, int64_t kernel) {  // of tiles of 14×32
    return ceil_div(oc, 14) * ceil_div(ic, 32) * kernel * kernel;
  };
  CHECK(cells(256, 256, 3) == 1368);
  CHECK(cells(64, 3, 7) == 245);
  CHECK(cells(64, 64, 1) == 10);  // the share of four threads: 3, 3, 2, 2
}

TEST_CASE("conv 6.2 A long chain of sums loses more than pieces of it") {
  constexpr int kCount = 64 * 1024, kPiece = 256;
  const float x = 0.1f;
  float chain = 0, pieces = 0;
  for (int i = 0; i < kCount; ++i) chain += x;
  for (int i = 0; i < kCount; i += kPiece) {
    float sum = 0;
    for (int j = 0; j < kPiece; ++j) sum += x;
    pieces += sum;
  }
  const double exact = kCount * static_cast<double>(x);
  const auto error = [&](float sum) { return std::abs(static_cast<double>(sum) - exact); };
  CHECK(error(chain) > 10 * error(pieces));
}

// Step 7.

TEST_CASE("conv 7.1 F(2, 3): two outputs of three taps by four multiplications") {
  const Floats d = integers(4, 1), g = integers(3, 2);
  const float m0 = (d[0] - d[2]) * g[0], m1 = (d[1] + d[2]) * ((g[0] + g[1] + g[2]) / 2),
              m2 = (d[2] - d[1]) * ((g[0] - g[1] + g[2]) / 2), m3 = (d[1] - d[3]) * g[2];
  CHECK(m0 + m1 + m2 == d[0] * g[0] + d[1] * g[1] + d[2] * g[2]);
  CHECK(m1 - m2 - m3 == d[1] * g[0] + d[2] * g[1] + d[3] * g[2]);
}

TEST_CASE("conv 7.2 What tiles that reach over the edge cost") {
  const auto saving = [](int64_t size) {
    const int64_t tiled = round_up(size, 4);
    return 4.0 * static_cast<double>(size * size) / static_cast<double>(tiled * tiled);
  };
  CHECK(saving(56) == 4);
  CHECK(saving(14) == doctest::Approx(3.0625));
  CHECK(saving(7) == doctest::Approx(3.0625));
  CHECK(saving(2) == 1);  // no multiplication saved
}
