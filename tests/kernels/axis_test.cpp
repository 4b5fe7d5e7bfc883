// The numbers of an axis against the definition of a convolution, for all small sizes.
#include "quern/ops/kernels/conv/axis.h"

#include <doctest/doctest.h>

#include <set>
#include <utility>
#include <vector>

using namespace quern::kernels;

namespace {

/// What an output reads: {index in the weight, source pixel}.
using Reads = std::set<std::pair<int64_t, int64_t>>;

/// Calls f(input, output, kernel, stride, pad, dilation) for all that have outputs.
template <class F>
void each_small_convolution(F f) {
  for (int64_t input = 1; input <= 7; ++input)
    for (int64_t kernel = 1; kernel <= 4; ++kernel)
      for (int64_t stride = 1; stride <= 5; ++stride)
        for (int64_t pad = 0; pad <= 4; ++pad)
          for (int64_t dilation = 1; dilation <= 4; ++dilation) {
            const int64_t room = input + 2 * pad - dilation * (kernel - 1) - 1;
            if (room >= 0) f(input, room / stride + 1, kernel, stride, pad, dilation);
          }
}

/// The live taps of every output, in the order of offsets and where scratch has them.
std::vector<Reads> reads(const Axis& axis) {
  for (int64_t plane = 0; plane < axis.planes; ++plane) {
    const auto [begin, end] = axis.inside(plane, 1, 4);
    for (int64_t p = 0; p < 4; ++p) {
      const int64_t source = axis.source_at(plane, 1, p);
      REQUIRE((p >= begin && p < end) == (source >= 0 && source < axis.source));
    }
  }
  std::vector<Reads> all(static_cast<size_t>(axis.output));
  for (int64_t p = 0; p < axis.phases(); ++p) {
    const Phase phase = axis.phase(p);
    REQUIRE(phase.count <= axis.longest_phase());
    REQUIRE(phase.taps <= axis.most_taps());
    for (int64_t i = 0; i < phase.count; ++i) {
      const auto [begin, end] = axis.live_taps(phase, i);
      for (int64_t t = 0; t < phase.taps; ++t) {
        const Tap tap = axis.tap(phase, t);
        const int64_t source = i * axis.stride() + tap.offset;
        REQUIRE((t == 0 || axis.tap(phase, t - 1).offset < tap.offset));
        REQUIRE((t >= begin && t < end) == (source >= 0 && source < axis.source));
        const auto [first, last] = axis.live_outputs(phase, tap);
        REQUIRE((i >= first && i < last) == (source >= 0 && source < axis.source));
        REQUIRE((tap.plane >= 0 && tap.plane < axis.planes));
        REQUIRE((tap.shift >= 0 && tap.shift <= axis.reach));
        REQUIRE(axis.source_at(tap.plane, i, tap.shift) == source);
        if (t >= begin && t < end)
          all[static_cast<size_t>(phase.start + i * axis.output_step)].insert({tap.kernel, source});
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("an axis of forward reads what the definition says") {
  each_small_convolution([](int64_t input, int64_t output, int64_t kernel, int64_t stride,
                            int64_t pad, int64_t dilation) {
    std::vector<Reads> expected(static_cast<size_t>(output));
    bool padding = false;
    for (int64_t o = 0; o < output; ++o)
      for (int64_t r = 0; r < kernel; ++r) {
        const int64_t source = o * stride - pad + r * dilation;
        if (source >= 0 && source < input) expected[static_cast<size_t>(o)].insert({r, source});
        else padding = true;
      }
    const Axis axis = forward_axis(input, output, kernel, stride, pad, dilation);
    REQUIRE(reads(axis) == expected);
    REQUIRE(reads(with_plane_a_tap(axis)) == expected);
    REQUIRE(axis.reads_no_padding() == !padding);
    if (dilation == 1)
      REQUIRE(reads(plain_forward_axis(input, output, kernel, stride, pad)) == expected);
  });
}

TEST_CASE("an axis of dgrad reads what the definition says") {
  each_small_convolution([](int64_t input, int64_t output, int64_t kernel, int64_t stride,
                            int64_t pad, int64_t dilation) {
    std::vector<Reads> expected(static_cast<size_t>(input));
    for (int64_t o = 0; o < output; ++o)
      for (int64_t r = 0; r < kernel; ++r) {
        const int64_t to = o * stride - pad + r * dilation;
        if (to >= 0 && to < input) expected[static_cast<size_t>(to)].insert({r, o});
      }
    const Axis axis = dgrad_axis(input, output, kernel, stride, pad, dilation);
    REQUIRE(reads(axis) == expected);
    if (axis.phases() == 1) REQUIRE(reads(with_plane_a_tap(axis)) == expected);
  });
}
