// The depthwise kernels on every instruction set, what their convolutions round, and where they are
// taken. That these are exact where nothing is rounded is tested with all engines in conv_test.cpp
// and conv_epilogue_test.cpp.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "depthwise_cases.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

/// Results of all functions of a kernel on one window, whose tensors have more channels than it.
struct RowResults {
  std::vector<double> sums, stored, gradient;
  std::vector<double> with_moments, first, second;  // of channels with a filter each
  bool operator==(const RowResults&) const = default;
};

/// The weight of run_row(), bf16: [row][tap][pair][channel][2], two more behind each row.
std::vector<double> paired_weight(Buffer& weight, const DepthwiseWindow& w) {
  const int64_t pitch = w.weight_channel;
  std::vector<double> pairs;
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t j = 0; j < w.taps * w.group / 2; ++j)
      for (int64_t c = 0; c < pitch; ++c)
        for (int64_t i = 0; i < 2; ++i)
          pairs.push_back(weight[r * w.weight_row + (2 * j + i) * pitch + c]);
    pairs.insert(pairs.end(), 2, 0.0);
  }
  return pairs;
}

RowResults run_row(const DepthwiseKernel& kernel, DepthwiseWindow w) {
  const int64_t pitch = w.channels + 3, tap = w.group * pitch;
  w.pixel = pitch, w.source_row = w.width * pitch + 5;
  w.weight_channel = pitch, w.weight_tap = -tap, w.weight_row = w.taps * tap + 1;
  const int64_t last_tap = (w.taps - 1) * tap, taps = w.rows * w.weight_row + tap;
  Buffer source(kernel.dtype, integers(w.rows * w.source_row + pitch, 1));
  Buffer weight(DType::f32, integers(taps, 2)), shift(DType::f32, integers(w.channels, 3));
  Buffer dy(kernel.dtype, integers(w.outputs * pitch, 4));
  Buffer sums(DType::f32, w.outputs * pitch), stored(kernel.dtype, w.outputs * pitch);
  Buffer gradient(DType::f32, integers(taps, 5));
  // What no output is keeps its value.
  for (int64_t i = 0; i < w.outputs * pitch; ++i) sums.set(i, 7), stored.set(i, 7);
  w.source = source.data();
  const bool pairs = kernel.steps(w.group) < w.group;
  Buffer paired(DType::bf16, pairs ? paired_weight(weight, w) : std::vector<double>{});
  void* packed = pairs ? paired.at(last_tap) : weight.at(last_tap);
  DepthwiseWindow window = w;
  if (pairs) window.weight_tap /= 2, window.weight_row = w.taps * tap / 2 + 1;
  kernel.sum(window, floats(packed), floats(sums.data()), pitch);
  kernel.store(window, floats(packed), {floats(shift.data()), Activation::relu6}, stored.data(),
               pitch);
  kernel.add_gradient(w, dy.data(), pitch, floats(gradient.at(last_tap)));
  CHECK(sums.guarded());
  CHECK(stored.guarded());
  CHECK(gradient.guarded());
  RowResults results{sums.values(), stored.values(), gradient.values(), {}, {}, {}};
  if (w.group > 1) return results;
  Buffer pivot(DType::f32, integers(w.channels, 6));
  Buffer first(DType::f32, integers(w.channels, 7)), second(DType::f32, integers(w.channels, 8));
  DepthwiseStore moments{.pivot = floats(pivot.data()),
                         .first = floats(first.data()),
                         .second = floats(second.data())};
  if (w.fresh > 0) moments.to_next_row = 64;
  kernel.store(w, floats(weight.at(last_tap)), moments, stored.data(), pitch);
  CHECK(stored.guarded());
  CHECK(first.guarded());
  CHECK(second.guarded());
  results.with_moments = stored.values();
  results.first = first.values(), results.second = second.values();
  return results;
}

std::vector<double> run_plane(const DepthwiseKernel& kernel, DepthwisePlane p) {
  constexpr int64_t around = 64;  // what vectors may reach

  const int64_t items = p.sources * p.height * p.width;
  Buffer source(kernel.dtype, integers(items + 2 * around, 1));
  const int64_t pitch = 2 * kDepthwiseChannels;
  Buffer weight(DType::f32, integers(p.sources * pitch * p.rows * p.taps, 2));
  Buffer shift(DType::f32, integers(pitch, 3));
  Buffer out(kernel.dtype, p.out_height * p.out_width + kDepthwiseChannels);
  p.source = source.at(around);
  p.weight_row = -pitch, p.weight_tap = pitch * p.rows;
  p.weight_source = p.weight_tap * p.taps;
  const int64_t last_row = pitch * (p.rows - 1);
  // A tap's weights are as many as channels, again and again.
  for (int64_t i = 0; i < pitch * p.rows * p.taps; ++i)
    if (p.channels > 0) weight.set(i, weight[i - i % pitch + i % pitch % p.channels]);
  for (int64_t i = 0; i < pitch && p.channels > 0; ++i) shift.set(i, shift[i % p.channels]);
  // Padding is not multiplied, and what lies around is not read: all of it is NaN.
  for (int64_t i = 0; i < around; ++i) {
    source.set(i, std::numeric_limits<double>::quiet_NaN());
    source.set(around + items + i, std::numeric_limits<double>::quiet_NaN());
  }
  kernel.store_plane(p, floats(weight.at(last_row)), {floats(shift.data()), Activation::relu6},
                     out.data());
  CHECK(out.guarded());
  std::vector<double> values = out.values();
  values.resize(static_cast<size_t>(p.out_height * p.out_width));
  return values;
}

struct Passes {
  std::vector<double> y, dx, dw;
};

Passes run_passes(const ConvProblem& p, const ConvKernel& kernel, const Data& data) {
  const auto plan = [&](ConvPass pass) {
    return plan_conv({p, pass, &kernel, &select_gemm_kernel(p.dtype)});
  };
  Buffer x(p.dtype, data.x), w(p.dtype, data.w), dy(p.dtype, data.dy);
  Buffer y(p.dtype, std::ssize(data.dy)), dx(p.dtype, std::ssize(data.x));
  Buffer dw(sum_dtype(p.dtype), std::ssize(data.w));
  const auto forward = plan(ConvPass::forward), dgrad = plan(ConvPass::dgrad);
  forward->run(x.data(), packed_weight(*forward, w).data(), y.data());
  dgrad->run(dy.data(), packed_weight(*dgrad, w).data(), dx.data());
  plan(ConvPass::wgrad)->run(x.data(), dy.data(), dw.data());
  CHECK(y.guarded());
  CHECK(dx.guarded());
  CHECK(dw.guarded());
  return {y.values(), dx.values(), dw.values()};
}

}  // namespace

TEST_CASE("Rows of depthwise windows equal the reference's on every instruction set") {
  // Integers: exact, whatever the order of a sum.
  Draws draw{3};
  for (int i = 0; i < (kEmulatedCpu ? 60 : 600); ++i) {
    DepthwiseWindow w{};
    w.width = draw(1, 24), w.rows = draw(0, 7), w.taps = i % 4 == 0 ? draw(8, 17) : draw(0, 7);
    w.outputs = draw(1, 21), w.stride = draw(1, 5), w.offset = draw(-w.taps - 2, 4);
    w.offset_step = draw(0, 3) == 0 ? draw(2, 3) : 1;
    w.group = int64_t{1} << draw(0, 4);
    w.channels = draw(kDepthwiseChannels / w.group, (i % 5 == 0 ? 90 : 50) / w.group) * w.group;
    if (i % 3 == 0) w.fresh = draw(1, 2), w.to_next_row = 64;
    CAPTURE(w.width);
    CAPTURE(w.rows);
    CAPTURE(w.taps);
    CAPTURE(w.outputs);
    CAPTURE(w.stride);
    CAPTURE(w.offset);
    CAPTURE(w.offset_step);
    CAPTURE(w.channels);
    CAPTURE(w.group);
    const RowResults expected[] = {run_row(reference_of(DType::f32), w),
                                   run_row(reference_of(DType::bf16), w)};
    each_runnable(table<DepthwiseKernel>(), [&](const DepthwiseKernel& kernel) {
      if (w.group <= kernel.widest_group)
        CHECK(run_row(kernel, w) == expected[kernel.dtype == DType::bf16]);
    });
  }
}

TEST_CASE("Windows whose kernels spread groups equal the reference's on every instruction set") {
  Draws draw{5};
  for (int i = 0; i < (kEmulatedCpu ? 20 : 300); ++i) {
    const int64_t in = draw(2, 8), out = draw(1, 8);
    const int64_t groups = draw((kDepthwiseChannels + out - 1) / out, 40 / out + 1);
    DepthwiseWindow w{};
    w.width = draw(1, 24), w.rows = draw(0, 3), w.taps = draw(0, 4), w.outputs = draw(1, 21);
    w.stride = draw(1, 3), w.offset = draw(-w.taps - 1, 3), w.offset_step = draw(1, 2);
    w.channels = groups * out, w.steps = in, w.source_channels = groups * in;
    w.pixel = w.source_channels, w.source_row = w.width * w.pixel + 5;
    w.weight_channel = w.channels + 1, w.weight_tap = in * w.weight_channel;
    w.weight_row = w.taps * w.weight_tap + 2;
    std::vector<int32_t> index;
    for (int64_t c = 0; c < w.channels; ++c) index.push_back(static_cast<int32_t>(c / out * in));
    w.index = index.data();
    CAPTURE(in);
    CAPTURE(out);
    const auto run = [&](const DepthwiseKernel& kernel) {
      Buffer source(kernel.dtype, integers(w.rows * w.source_row, 1));
      Buffer weight(DType::f32, integers(w.rows * w.weight_row + w.weight_tap, 2));
      Buffer shift(DType::f32, integers(w.channels, 3));
      Buffer dy(kernel.dtype, integers(w.outputs * w.channels, 4));
      Buffer sums(DType::f32, w.outputs * w.channels);
      Buffer stored(kernel.dtype, w.outputs * w.channels);
      Buffer gradient(DType::f32, integers(w.rows * w.weight_row + w.weight_tap, 5));
      DepthwiseWindow window = w;
      window.source = source.data();
      kernel.sum(window, floats(weight.data()), floats(sums.data()), w.channels);
      kernel.store(window, floats(weight.data()), {floats(shift.data()), Activation::relu},
                   stored.data(), w.channels);
      kernel.add_gradient(window, dy.data(), w.channels, floats(gradient.data()));
      CHECK((sums.guarded() && stored.guarded() && gradient.guarded()));
      return std::array{sums.values(), stored.values(), gradient.values()};
    };
    const std::array expected{run(reference_of(DType::f32)), run(reference_of(DType::bf16))};
    each_runnable(table<DepthwiseKernel>(), [&](const auto& kernel) {
      if (kernel.permutes(in, out)) CHECK(run(kernel) == expected[kernel.dtype == DType::bf16]);
    });
  }
}

TEST_CASE("Planes of depthwise windows equal the reference's on every instruction set") {
  for (int64_t rows : {1, 2, 3, 5, 7})
    for (int64_t taps : {1, 3, 4})
      for (int64_t step : {1, 2})
        for (int64_t width : {1, 3, 7, 12, 16, 17, 33})
          for (int64_t pad : {0, 1, 3}) {
            DepthwisePlane p{};
            // One channel, or some of them.
            p.channels = (width + rows + taps) % 3 == 0 ? 1 + (width + pad) % 15 : 0;
            if (p.channels == 0) p.sources = 1 + (rows + width) % 3;
            const int64_t inside = std::max<int64_t>(1, p.channels);
            p.rows = rows, p.taps = taps, p.step = step * inside;
            p.width = width * inside, p.height = 1 + (width + 2 * rows) % 13;
            p.top = -pad, p.left = -pad * inside;
            p.out_height = p.height + 2 * pad - rows + 1;
            p.out_width = (width + 2 * pad - (taps - 1) * step) * inside;
            if (p.out_height < 1 || p.out_width < 1) continue;
            REQUIRE(takes_plane_rows(rows));
            CAPTURE(rows);
            CAPTURE(taps);
            CAPTURE(step);
            CAPTURE(width);
            CAPTURE(pad);
            CAPTURE(p.channels);
            const std::vector<double> expected[] = {run_plane(reference_of(DType::f32), p),
                                                    run_plane(reference_of(DType::bf16), p)};
            each_runnable(table<DepthwiseKernel>(), [&](const DepthwiseKernel& kernel) {
              CHECK(run_plane(kernel, p) == expected[kernel.dtype == DType::bf16]);
            });
          }
}

TEST_CASE("Groups are spread as the reference does on every instruction set") {
  const auto run = [](const DepthwiseKernel& kernel, int64_t in, int64_t out, int64_t channels) {
    constexpr int64_t pixels = 3;
    const int64_t from_pixel = ceil_div(channels, out) * in, to_pixel = channels + 2;
    std::vector<int32_t> index;
    for (int64_t c = 0; c < channels; ++c) index.push_back(static_cast<int32_t>(c / out * in));
    Buffer from(kernel.dtype, integers(pixels * from_pixel + kSpreadReach, 1));
    Buffer to(kernel.dtype, integers(in * pixels * to_pixel, 2));
    kernel.spread({.from = from.data(),
                   .from_pixel = from_pixel,
                   .index = index.data(),
                   .channels = channels,
                   .steps = in,
                   .pixels = pixels,
                   .to = to.data(),
                   .to_step = pixels * to_pixel,
                   .to_pixel = to_pixel});
    CHECK(to.guarded());
    return to.values();
  };
  each_runnable(table<DepthwiseKernel>(), [&](const DepthwiseKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    for (int64_t in : {1, 2, 3, 5, 20})
      for (int64_t out : {1, 2, 3, 7})
        for (int64_t channels : {1, 15, 32, 77})
          CHECK(run(kernel, in, out, channels) ==
                run(reference_of(kernel.dtype), in, out, channels));
  });
}

TEST_CASE("Depthwise sums stay within the bound of one f32 sum") {
  // Each of the K products and additions rounds by at most u = 2^-24 of Σ|x·w| so far: |error| <=
  // (K+1)·u·Σ|x·w|, and bf16 once more.
  for (const Case& c : {depthwise(2, 35, {15, 17}, {3, 3}, {1, 1}, {1, 1}),
                        depthwise(1, 18, {16, 12}, {5, 5}, {2, 2}, {2, 2}),
                        depthwise(1, 3, {14, 31}, {7, 7}, {1, 1}, {3, 3}),
                        depthwise(1, 20, {17, 19}, {13, 11}, {1, 1}, {6, 5})})
    for (MemoryFormat format : kFormats)
      for (DType dtype : {DType::f32, DType::bf16}) {
        const ConvProblem p = c.problem(dtype, format);
        ConvProblem exact = p;
        exact.dtype = DType::f64;
        Data data(p, false);
        const Passes got = run_passes(p, conv_kernel("depthwise"), data);
        const Passes expected = run_passes(exact, conv_kernel("reference"), data);
        data.make_absolute();
        const Passes size = run_passes(exact, conv_kernel("reference"), data);
        CAPTURE(p.to_string());
        CHECK(within(got.y, expected.y, size.y, p.kh * p.kw, dtype));
        CHECK(within(got.dx, expected.dx, size.dx, p.kh * p.kw, dtype));
        CHECK(within(got.dw, expected.dw, size.dw, p.n * p.oh * p.ow, DType::f32));
      }
}

TEST_CASE("A NaN or infinity reaches the windows that hold it, and padding multiplies none") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const Case& c : {depthwise(2, 21, {9, 10}, {3, 3}, {1, 1}, {1, 1}),
                        depthwise(1, 21, {13, 14}, {3, 5}, {1, 1}, {2, 4}, {1, 2}),
                        depthwise(1, 4, {7, 15}, {5, 5}, {2, 2}, {2, 2}),
                        depthwise(1, 20, {9, 19}, {4, 13}, {1, 1}, {2, 6})})
    for (MemoryFormat format : kFormats) {
      const ConvProblem p = c.problem(DType::f32, format);
      Data data(p, false);
      data.x[data.x.size() / 3] = inf, data.x[data.x.size() / 2] = std::nan("");
      data.dy[data.dy.size() / 3] = -inf, data.dy[data.dy.size() / 2] = std::nan("");
      data.w[0] = inf;
      const Passes got = run_passes(p, conv_kernel("depthwise"), data);
      const Passes expected = run_passes(p, conv_kernel("reference"), data);
      CAPTURE(p.to_string());
      CHECK(same_kinds(got.y, expected.y));
      CHECK(same_kinds(got.dx, expected.dx));
      CHECK(same_kinds(got.dw, expected.dw));
    }
}

TEST_CASE("Forward maps rows once, in blocks, and takes moments over rows of any length") {
  // Integers: outputs are exact, and so are the sums of distances from a pivot, which is a mean of
  // 256 of them at most. Rows are many enough that what is copied of an image is no block.
  int64_t ran = 0;
  for (const Case& c : {depthwise(2, 16, {kEmulatedCpu ? 9 : 60, 700}, {3, 3}, {1, 1}, {1, 1}),
                        depthwise(1, 40, {kEmulatedCpu ? 8 : 61, 300}, {5, 5}, {2, 2}, {2, 2}),
                        depthwise(3, 18, {11, 12}, {3, 3}, {1, 1}, {2, 4}, {2, 4})})
    for (DType dtype : {DType::f32, DType::bf16})
      for (MemoryFormat format : kFormats) {
        const auto run = [&](DType of, const ConvKernel& kernel) {
          ConvProblem p = c.problem(of, format);
          p.maps = p.sums = true;
          Buffer x(of, integers(p.n * p.ic * p.ih * p.iw, 1)),
              w(of, integers(p.oc * p.kh * p.kw, 2));
          Buffer y(of, p.n * p.oc * p.oh * p.ow), mean(DType::f64, p.oc), m2(DType::f64, p.oc);
          const DType wide = sum_dtype(of);
          Buffer center(wide, integers(p.ic, 3)), scale(wide, integers(p.ic, 4));
          Buffer shift(wide, integers(p.ic, 5));
          const auto plan =
              plan_conv({p, ConvPass::forward, &kernel, &select_gemm_kernel(p.dtype)});
          plan->run(x.data(), packed_weight(*plan, w).data(), y.data(),
                    {.kind = Epilogue::Kind::moments, .first = mean.data(), .second = m2.data()},
                    {center.data(), scale.data(), shift.data(), Activation::relu6});
          CHECK(y.guarded());
          return std::array{y.values(), mean.values(), m2.values()};
        };
        const auto expected = run(DType::f64, conv_kernel("reference"));
        const auto got = run(dtype, conv_kernel("depthwise"));
        CHECK(got[0] == rounded(expected[0], dtype));
        const ConvProblem p = c.problem(dtype, format);
        const double pixels = static_cast<double>(p.n * p.oh * p.ow);
        for (size_t i = 0; i < got[1].size(); ++i) {
          // As conv_epilogue_test.cpp has it: 258 roundoffs of the distances and of their squares.
          const double bound = 2 * 258 * kRoundoff, m2 = expected[2][i];
          CHECK(std::abs(got[1][i] - expected[1][i]) <= bound * std::sqrt(2 * m2 / pixels));
          CHECK(std::abs(got[2][i] - m2) <= bound * m2);
        }
        ++ran;
      }
  CHECK(ran == 12);
}

TEST_CASE("Depthwise results have the same bits with 1, 2 and 3 threads") {
  const test::Threads kept;
  for (const Case& c : {depthwise(3, 70, {30, 28}, {3, 3}, {1, 1}, {1, 1}),
                        depthwise(2, 160, {20, 21}, {7, 7}, {2, 2}, {3, 3})})
    for (MemoryFormat format : kFormats)
      for (DType dtype : {DType::f32, DType::bf16}) {
        const ConvProblem p = c.problem(dtype, format);
        const Data data(p, false);
        std::vector<Passes> results;
        for (int threads : {1, 2, 3}) {
          set_num_threads(threads);
          results.push_back(run_passes(p, conv_kernel("depthwise"), data));
        }
        for (const Passes& r : results) {
          CHECK(r.y == results[0].y);
          CHECK(r.dx == results[0].dx);
          CHECK(r.dw == results[0].dw);
        }
      }
}

TEST_CASE("Depthwise convolutions are taken where groups have one channel or few") {
  const auto chosen = [](const Case& c, DType dtype, ConvPass pass) {
    return choose_conv(c.problem(dtype, MemoryFormat::channels_last), pass).name();
  };
  for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad}) {
    const Case c = depthwise(1, 20, {9, 9}, {3, 3}, {2, 2}, {1, 1});
    CHECK_EQ(chosen(c, DType::f32, pass), "depthwise");
    CHECK_EQ(chosen(c, DType::bf16, pass), "depthwise");
    CHECK(chosen(c, DType::f64, pass).starts_with("brgemm"));
    CHECK_EQ(chosen(case_of("3 groups, stride 2"), DType::f32, pass), "depthwise");
    CHECK(chosen(case_of("2 groups"), DType::f32, pass).starts_with("brgemm"));
  }
  Case huge = depthwise(1, 16, {3, 1 << 20}, {3, 3}, {1, 1}, {1, 1});
  CHECK(conv_kernel("depthwise")
            .why_not(huge.problem(DType::f32, MemoryFormat::contiguous), ConvPass::forward,
                     select_gemm_kernel(DType::f32)) != nullptr);
}
