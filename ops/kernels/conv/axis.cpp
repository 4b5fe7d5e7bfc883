#include "quern/ops/kernels/conv/axis.h"

#include <algorithm>

namespace quern::kernels {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return (a >= 0 ? a : a - b + 1) / b; }
int64_t ceil_div(int64_t a, int64_t b) { return floor_div(a + b - 1, b); }

/// Gives every tap its plane and shift.
Axis with_planes(Axis axis) {
  axis.lead = INT64_MAX;
  for (const Phase& phase : axis.phases)
    for (const Tap& tap : phase.taps)
      axis.lead = std::min(axis.lead, floor_div(tap.offset, axis.step));
  axis.reach = 0;
  for (Phase& phase : axis.phases) {
    for (Tap& tap : phase.taps) {
      const int64_t at = floor_div(tap.offset, axis.step), remainder = tap.offset - at * axis.step;
      auto plane = std::find(axis.planes.begin(), axis.planes.end(), remainder);
      tap.plane = plane - axis.planes.begin();
      if (plane == axis.planes.end()) axis.planes.push_back(remainder);
      tap.shift = at - axis.lead;
      axis.reach = std::max(axis.reach, tap.shift);
    }
  }
  return axis;
}

Axis forward(int64_t input, int64_t output, int64_t kernel, int64_t step, int64_t stretch,
             int64_t pad, int64_t dilation) {
  Phase phase{.start = 0, .count = output, .taps = {}};
  for (int64_t r = 0; r < kernel; ++r)
    phase.taps.push_back({.kernel = r, .offset = r * dilation - pad, .plane = 0, .shift = 0});
  return with_planes({.source = input,
                      .output = output,
                      .output_step = 1,
                      .step = step,
                      .stretch = stretch,
                      .phases = {phase},
                      .planes = {},
                      .lead = 0,
                      .reach = 0});
}

}  // namespace

Axis::Range Axis::inside(int64_t plane, int64_t first, int64_t extent) const {
  const int64_t zero = first * stretch + lead;  // position p is source (zero + p)·step + remainder
  const int64_t end = ceil_div(source - planes[static_cast<size_t>(plane)], step) - zero;
  const int64_t begin = std::clamp<int64_t>(-zero, 0, extent);
  return {begin, std::clamp(end, begin, extent)};
}

Axis::Range Axis::live_taps(const Phase& phase, int64_t i) const {
  const auto first = phase.taps.begin(), last = phase.taps.end();
  const auto below = [&](int64_t bound) {
    return std::partition_point(first, last,
                                [&](const Tap& tap) { return i * stride() + tap.offset < bound; });
  };
  return {below(0) - first, below(source) - first};
}

bool Axis::reads_no_padding() const {
  return std::ranges::all_of(phases, [&](const Phase& phase) {
    return phase.taps.empty() || (phase.taps.front().offset >= 0 &&
                                  (phase.count - 1) * stride() + phase.taps.back().offset < source);
  });
}

Axis forward_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                  int64_t dilation) {
  return forward(input, output, kernel, stride, 1, pad, dilation);
}

Axis plain_forward_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride,
                        int64_t pad) {
  return forward(input, output, kernel, 1, stride, pad, 1);
}

Axis dgrad_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                int64_t dilation) {
  Axis axis{.source = output,
            .output = input,
            .output_step = stride,
            .step = 1,
            .stretch = 1,
            .phases = {},
            .planes = {},
            .lead = 0,
            .reach = 0};
  for (int64_t start = 0; start < std::min(stride, input); ++start) {
    Phase phase{.start = start, .count = ceil_div(input - start, stride), .taps = {}};
    for (int64_t r = kernel - 1; r >= 0; --r) {
      const int64_t distance = start + pad - r * dilation;
      if (distance % stride == 0)
        phase.taps.push_back({.kernel = r, .offset = distance / stride, .plane = 0, .shift = 0});
    }
    axis.phases.push_back(std::move(phase));
  }
  return with_planes(std::move(axis));
}

}  // namespace quern::kernels
