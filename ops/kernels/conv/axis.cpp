#include "quern/ops/kernels/conv/axis.h"

#include <algorithm>
#include <numeric>

#include "quern/tensor/divide.h"

namespace quern::kernels {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return (a >= 0 ? a : a - b + 1) / b; }

/// Which of `count` numbers, `step` apart from `first` on, are at least `low` and below `high`.
Axis::Range between(int64_t low, int64_t high, int64_t first, int64_t step, int64_t count) {
  const auto below = [&](int64_t bound) {
    return std::clamp<int64_t>(ceil_div(bound - first, step), 0, count);
  };
  return {below(low), below(high)};
}

/// With what follows from its taps.
Axis completed(Axis axis) {
  int64_t first = INT64_MAX, last = INT64_MIN;
  for (int64_t i = 0; i < axis.phases(); ++i) {
    const Phase phase = axis.phase(i);
    if (phase.taps == 0) continue;
    // Remainders of neighbouring taps differ, and repeat.
    const int64_t period = axis.step / std::gcd(axis.step, phase.offset_step);
    axis.planes = std::max(axis.planes, std::min(phase.taps, period));
    first = std::min(first, floor_div(phase.offset, axis.step));
    last = std::max(last, floor_div(phase.last_offset(), axis.step));
  }
  if (axis.planes > 0) axis.lead = first, axis.reach = last - first;
  return axis;
}

}  // namespace

Phase Axis::phase(int64_t i) const {
  if (!backward)
    return {.start = 0,
            .count = output,
            .taps = kernel,
            .kernel = 0,
            .kernel_step = 1,
            .offset = -pad,
            .offset_step = dilation};
  // Pixel i of dx meets tap r if i + pad - r·dilation is a multiple of the convolution's stride.
  const int64_t apart = output_step / std::gcd(output_step, dilation);
  int64_t r = kernel - 1;
  while (r >= 0 && (i + pad - r * dilation) % output_step != 0) --r;
  return {.start = i,
          .count = ceil_div(output - i, output_step),
          .taps = r < 0 ? 0 : r / apart + 1,
          .kernel = r,
          .kernel_step = -apart,
          .offset = (i + pad - r * dilation) / output_step,
          .offset_step = apart * dilation / output_step};
}

Tap Axis::tap(const Phase& phase, int64_t i) const {
  const int64_t offset = phase.offset + i * phase.offset_step;
  return {.kernel = phase.kernel + i * phase.kernel_step,
          .offset = offset,
          .plane = i % planes,
          .shift = plane_a_tap ? 0 : floor_div(offset, step) - lead};
}

int64_t Axis::most_taps() const {
  int64_t most = 0;
  for (int64_t i = 0; i < phases(); ++i) most = std::max(most, phase(i).taps);
  return most;
}

int64_t Axis::remainder(int64_t plane) const {
  if (plane_a_tap) return phase(0).offset + plane * phase(0).offset_step;
  const int64_t offset = plane * dilation - pad;
  return offset - floor_div(offset, step) * step;
}

Axis::Range Axis::inside(int64_t plane, int64_t first, int64_t extent) const {
  const int64_t zero = first * stretch + lead;  // position p is source (zero + p)·step + remainder
  const int64_t end = -floor_div(remainder(plane) - source, step) - zero;
  const int64_t begin = std::clamp<int64_t>(-floor_div(remainder(plane), step) - zero, 0, extent);
  return {begin, std::clamp(end, begin, extent)};
}

Axis::Range Axis::live_taps(const Phase& phase, int64_t i) const {
  return between(0, source, i * stride() + phase.offset, phase.offset_step, phase.taps);
}

Axis::Range Axis::live_outputs(const Phase& phase, const Tap& tap) const {
  return between(0, source, tap.offset, stride(), phase.count);
}

bool Axis::reads_no_padding(int64_t gap) const {
  for (int64_t i = 0; i < phases(); ++i) {
    const Phase p = phase(i);
    if (p.taps == 0) continue;
    if (p.offset < -gap || (p.count - 1) * stride() + p.last_offset() >= source + gap) return false;
  }
  return true;
}

Axis with_plane_a_tap(Axis axis) {
  axis.plane_a_tap = true;
  axis.planes = axis.phase(0).taps;
  axis.lead = axis.reach = 0;
  return axis;
}

Axis forward_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                  int64_t dilation) {
  return completed({.source = input,
                    .output = output,
                    .output_step = 1,
                    .step = stride,
                    .stretch = 1,
                    .kernel = kernel,
                    .pad = pad,
                    .dilation = dilation,
                    .backward = false});
}

Axis plain_forward_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride,
                        int64_t pad) {
  return completed({.source = input,
                    .output = output,
                    .output_step = 1,
                    .step = 1,
                    .stretch = stride,
                    .kernel = kernel,
                    .pad = pad,
                    .dilation = 1,
                    .backward = false});
}

Axis dgrad_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                int64_t dilation) {
  return completed({.source = output,
                    .output = input,
                    .output_step = stride,
                    .step = 1,
                    .stretch = 1,
                    .kernel = kernel,
                    .pad = pad,
                    .dilation = dilation,
                    .backward = true});
}

}  // namespace quern::kernels
