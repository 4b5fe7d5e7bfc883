// Both gradients of a depthwise convolution at once: the kernels against the reference, and the
// plans against dgrad and wgrad, each by itself, of the reference in f64.
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

/// A center, scale and shift for each of `channels`, integers.
struct Map {
  Buffer center, scale, shift;
  Activation activation;

  Map(DType dtype, int64_t channels, Activation activation)
      : center(dtype, integers(channels, 6)),
        scale(dtype, integers(channels, 7)),
        shift(dtype, integers(channels, 8)),
        activation(activation) {}
  operator ChannelMap() { return {center.data(), scale.data(), shift.data(), activation}; }
};

struct Gradients {
  std::vector<double> dx, dw, first, second;  // the latter two with a map
  bool operator==(const Gradients&) const = default;
};

/// Of one window of dy, whose tensors have more channels than it.
Gradients run_window(const DepthwiseKernel& kernel, DepthwiseWindow w, bool mapped,
                     Activation activation) {
  const int64_t pitch = w.channels + 3;
  w.pixel = pitch, w.source_row = w.width * pitch + 5;
  w.weight_tap = -pitch, w.weight_row = w.taps * pitch + 1;
  const int64_t last_tap = (w.taps - 1) * pitch, taps = w.rows * w.weight_row + pitch;
  Buffer source(kernel.dtype, integers(w.rows * w.source_row + pitch, 1));
  Buffer weight(DType::f32, integers(taps, 2)), dw(DType::f32, integers(taps, 5));
  Buffer x(kernel.dtype, integers(w.outputs * pitch, 3)), dx(kernel.dtype, w.outputs * pitch);
  Buffer first(DType::f32, integers(w.channels, 9)), second(DType::f32, integers(w.channels, 10));
  Map map(DType::f32, w.channels, activation);
  for (int64_t i = 0; i < w.outputs * pitch; ++i) dx.set(i, 7);  // what is no pixel's is kept
  w.source = source.data();
  DepthwiseBackward b{.x = x.data(),
                      .dx = dx.data(),
                      .pixel = pitch,
                      .map = mapped ? map : ChannelMap{},
                      .gradient = floats(dw.at(last_tap)),
                      .first = mapped ? floats(first.data()) : nullptr,
                      .second = mapped ? floats(second.data()) : nullptr};
  if (w.fresh > 0) b.to_next_row = 64;
  kernel.backward(w, floats(weight.at(last_tap)), b);
  for (Buffer* buffer : {&dx, &dw, &first, &second}) CHECK(buffer->guarded());
  return {dx.values(), dw.values(), first.values(), second.values()};
}

/// `at_once`: by run_both(), else by dgrad and wgrad.
Gradients run_plans(ConvProblem p, const ConvKernel& kernel, bool at_once, const Data& data,
                    bool mapped, Activation activation = Activation::relu) {
  const auto plan = [&](ConvPass pass, bool maps, bool sums) {
    ConvProblem q = p;
    q.maps = maps, q.sums = sums;
    return plan_conv({q, pass, &kernel, &select_gemm_kernel(p.dtype)});
  };
  const DType wide = sum_dtype(p.dtype);
  Buffer x(p.dtype, data.x), w(p.dtype, data.w), dy(p.dtype, data.dy);
  Buffer dx(p.dtype, std::ssize(data.x)), dw(wide, std::ssize(data.w));
  Buffer first(DType::f64, p.ic), second(DType::f64, p.ic);
  Map map(wide, p.ic, activation);
  Epilogue epilogue{.x = x.data()};
  if (mapped)
    epilogue = {.kind = Epilogue::Kind::gradient,
                .map = map,
                .x = x.data(),
                .first = first.data(),
                .second = second.data()};
  const auto dgrad = plan(ConvPass::dgrad, false, mapped);
  Buffer weight = packed_weight(*dgrad, w);
  if (at_once) {
    REQUIRE(dgrad->differentiates_at_once());
    dgrad->run_both(dy.data(), weight.data(), dx.data(), dw.data(), epilogue);
  } else {
    dgrad->run(dy.data(), weight.data(), dx.data(), epilogue);
    plan(ConvPass::wgrad, mapped, false)
        ->run(x.data(), dy.data(), dw.data(), {}, mapped ? map : ChannelMap{});
  }
  for (Buffer* buffer : {&dx, &dw, &first, &second}) CHECK(buffer->guarded());
  if (!mapped) return {dx.values(), dw.values(), {}, {}};
  return {dx.values(), dw.values(), first.values(), second.values()};
}

/// Strides, sizes and channels of all kinds; rows longer than 256 pixels, pixels that no dy reads.
const Case kShapes[] = {
    depthwise(2, 35, {15, 17}, {3, 3}, {1, 1}, {1, 1}),
    depthwise(3, 64, {14, 14}, {3, 3}, {2, 2}, {1, 1}),
    depthwise(1, 18, {16, 12}, {5, 5}, {2, 2}, {2, 2}),
    depthwise(2, 16, {14, 31}, {7, 7}, {1, 1}, {3, 3}),
    depthwise(1, 21, {13, 14}, {3, 5}, {1, 1}, {2, 4}, {2, 1}),
    depthwise(1, 16, {3, 700}, {3, 3}, {1, 2}, {1, 1}),
    depthwise(1, 500, {6, 5}, {2, 1}, {3, 3}, {0, 0}),
    depthwise(2, 40, {9, 10}, {4, 6}, {1, 1}, {2, 3}),
};

}  // namespace

TEST_CASE("Both gradients at once equal the reference's on every instruction set") {
  // Integers: exact, whatever the order of a sum.
  int64_t ran = 0;
  Draws draw{4};
  for (int i = 0; i < (kEmulatedCpu ? 60 : 600); ++i) {
    DepthwiseWindow w{};
    w.width = draw(1, 24), w.rows = draw(0, 7), w.taps = draw(1, kBackwardTaps);
    w.outputs = draw(1, 21), w.stride = 1, w.offset = draw(-9, 4), w.offset_step = 1;
    w.channels = draw(kDepthwiseChannels, 50);
    if (i % 3 == 0) w.fresh = draw(1, 2), w.to_next_row = 64;
    const bool mapped = i % 4 != 0;
    const Activation activation =
        std::array{Activation::none, Activation::relu, Activation::relu6}[i % 3];
    CAPTURE(w.width);
    CAPTURE(w.rows);
    CAPTURE(w.taps);
    CAPTURE(w.outputs);
    CAPTURE(w.offset);
    CAPTURE(w.channels);
    CAPTURE(mapped);
    const Gradients expected[] = {run_window(reference_of(DType::f32), w, mapped, activation),
                                  run_window(reference_of(DType::bf16), w, mapped, activation)};
    each_runnable(table<DepthwiseKernel>(), [&](const DepthwiseKernel& kernel) {
      CAPTURE(std::string(kernel.name));
      ++ran;
      CHECK(run_window(kernel, w, mapped, activation) == expected[kernel.dtype == DType::bf16]);
    });
  }
  CHECK(ran > 0);
}

TEST_CASE("Smooth activations pass both gradients as closely as their roundings allow") {
  // One tap, of weight 1: dx = dy · slope(v), dw = Σ dy · activation(v). Channels have scale ½.
  constexpr int64_t channels = 21, pixels = 13;
  each_runnable(table<DepthwiseKernel>(), [&](const DepthwiseKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    for (const Activation activation : {Activation::silu, Activation::hardswish}) {
      Buffer dy(kernel.dtype, integers(pixels * channels, 1));
      Buffer x(kernel.dtype, integers(pixels * channels, 2));
      Buffer weight(DType::f32, std::vector<double>(channels, 1)), dw(DType::f32, channels);
      Buffer dx(kernel.dtype, pixels * channels), center(DType::f32, integers(channels, 3));
      Buffer scale(DType::f32, std::vector<double>(channels, 0.5));
      Buffer shift(DType::f32, integers(channels, 4));
      Buffer first(DType::f32, channels), second(DType::f32, channels);
      for (Buffer* sums : {&dw, &first, &second})
        for (int64_t c = 0; c < channels; ++c) sums->set(c, 0);
      kernel.backward({.source = dy.data(),
                       .source_row = 0,
                       .pixel = channels,
                       .width = pixels,
                       .rows = 1,
                       .taps = 1,
                       .weight_row = 0,
                       .weight_tap = 0,
                       .outputs = pixels,
                       .stride = 1,
                       .offset = 0,
                       .offset_step = 1,
                       .channels = channels},
                      floats(weight.data()),
                      {.x = x.data(),
                       .dx = dx.data(),
                       .pixel = channels,
                       .map = {center.data(), scale.data(), shift.data(), activation},
                       .gradient = floats(dw.data()),
                       .first = floats(first.data()),
                       .second = floats(second.data())});
      // exp within 2 roundings and at most 8 of what is no larger than 4 times the value itself; z
      // and dx rounded to bf16, sums of them not.
      const double rounding = kernel.dtype == DType::bf16 ? 0x1p-8 : 0;
      for (int64_t c = 0; c < channels; ++c) {
        double sum_dw = 0, size_dw = 0, sum_first = 0, sum_second = 0;
        for (int64_t i = 0; i < pixels; ++i) {
          const double v = (x[i * channels + c] - center[c]) / 2 + shift[c];
          const double s = 1 / (1 + std::exp(-v)), d = dy[i * channels + c];
          const bool silu = activation == Activation::silu;
          const double z = silu ? v * s : v * std::min(std::max(v + 3, 0.0), 6.0) / 6;
          const double slope = silu ? s * (1 + v * (1 - s)) : v <= -3 ? 0 : v < 3 ? v / 3 + 0.5 : 1;
          const double got = dx[i * channels + c];
          CHECK(std::abs(got - d * slope) <=
                40 * kRoundoff * (std::abs(d * slope) + 16) + rounding * std::abs(d * slope));
          sum_dw += d * z, size_dw += std::abs(d * z);
          sum_first += d * slope, sum_second += d * slope * (x[i * channels + c] - center[c]);
        }
        CHECK(std::abs(dw[c] - sum_dw) <= pixels * 40 * kRoundoff * 64 + rounding * size_dw);
        CHECK(std::abs(first[c] - sum_first) <= pixels * 40 * kRoundoff * 64);
        CHECK(std::abs(second[c] - sum_second) <= pixels * 40 * kRoundoff * 640);
      }
    }
  });
}

TEST_CASE("Both gradients at once are what dgrad and wgrad are, exactly") {
  int64_t ran = 0;
  for (const Case& c : kShapes)
    for (DType dtype : {DType::f32, DType::bf16})
      for (Activation activation : {Activation::none, Activation::relu, Activation::relu6})
        for (bool mapped : {true, false}) {
          const ConvProblem p = c.problem(dtype, MemoryFormat::channels_last);
          ConvProblem exact = p;
          exact.dtype = DType::f64;
          const Data data(p, true);
          CAPTURE(p.to_string());
          CAPTURE(mapped);
          Gradients expected =
              run_plans(exact, conv_kernel("reference"), false, data, mapped, activation);
          expected.dx = rounded(expected.dx, dtype);
          CHECK(run_plans(p, conv_kernel("depthwise"), true, data, mapped, activation) == expected);
          ++ran;
        }
  CHECK(ran == std::ssize(kShapes) * 12);
}

TEST_CASE("Sums of both gradients at once stay within their bounds") {
  // dx: K products and additions (K+1)·u·Σ|dy·w|, dw the same of 256 products, as many sums of
  // these as there are, and cells: fewer than pixels altogether.
  for (const Case& c : kShapes)
    for (DType dtype : {DType::f32, DType::bf16}) {
      const ConvProblem p = c.problem(dtype, MemoryFormat::channels_last);
      ConvProblem exact = p;
      exact.dtype = DType::f64;
      Data data(p, false);
      const Gradients got = run_plans(p, conv_kernel("depthwise"), true, data, false);
      const Gradients expected = run_plans(exact, conv_kernel("reference"), false, data, false);
      data.make_absolute();
      const Gradients size = run_plans(exact, conv_kernel("reference"), false, data, false);
      CAPTURE(p.to_string());
      CHECK(within(got.dx, expected.dx, size.dx, p.kh * p.kw, dtype));
      CHECK(within(got.dw, expected.dw, size.dw, p.n * p.oh * p.ow, DType::f32));
    }
}

TEST_CASE(
    "A NaN or infinity reaches both gradients where it belongs, and padding multiplies none") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const Case& c : kShapes)
    for (bool mapped : {true, false}) {
      const ConvProblem p = c.problem(DType::f32, MemoryFormat::channels_last);
      Data data(p, true);
      data.x[data.x.size() / 3] = inf, data.x[data.x.size() / 2] = std::nan("");
      data.dy[data.dy.size() / 3] = -inf, data.dy[data.dy.size() / 2] = std::nan("");
      data.w[0] = inf;
      const Gradients got = run_plans(p, conv_kernel("depthwise"), true, data, mapped);
      const Gradients expected = run_plans(p, conv_kernel("reference"), false, data, mapped);
      CAPTURE(p.to_string());
      CAPTURE(mapped);
      CHECK(same_kinds(got.dx, expected.dx));
      CHECK(same_kinds(got.dw, expected.dw));
      CHECK(same_kinds(got.first, expected.first));
      CHECK(same_kinds(got.second, expected.second));
    }
}

TEST_CASE("Both gradients at once have the same bits with 1, 2 and 3 threads") {
  const test::Threads kept;
  for (const Case& c : {depthwise(3, 70, {30, 28}, {3, 3}, {1, 1}, {1, 1}),
                        depthwise(2, 160, {20, 21}, {7, 7}, {2, 2}, {3, 3})})
    for (DType dtype : {DType::f32, DType::bf16}) {
      const ConvProblem p = c.problem(dtype, MemoryFormat::channels_last);
      const Data data(p, false);
      std::vector<Gradients> results;
      for (int threads : {1, 2, 3}) {
        set_num_threads(threads);
        results.push_back(
            run_plans(p, conv_kernel("depthwise"), true, data, true, Activation::silu));
      }
      for (const Gradients& r : results) CHECK(r == results[0]);
    }
}
