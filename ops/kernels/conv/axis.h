// Which source pixels the outputs of a convolution read, along one axis, and where scratch keeps
// them.
//
// Forward and dgrad are the same sum: output i of a phase, stored at start + i·output_step, is
//     Σ over the phase's taps of source[i·stride + tap.offset] · weight[tap.kernel].
// Forward has one phase, whose stride is the convolution's. dgrad reads dy with stride 1: the
// pixels of dx whose index has the same remainder modulo the convolution's stride see the same
// taps, and are a phase.
//
// Scratch holds the source zero-padded. With stride 2, even and odd pixels lie in two planes, so
// that neighbouring outputs read neighbours whatever the stride:
//
//     source    . a b c d e f .     (. padding)     stride 2, kernel 3, padding 1
//     plane 0   . b d f             tap 0: shift 0, tap 2: shift 1
//     plane 1   . a c e             tap 1: shift 1
//
// Planes that no tap reads are left out. Output i reads tap t at position i·stretch + t.shift of
// t.plane. Where taps are so far apart that few outputs would read little of a plane, each tap may
// have a plane of its own.
// Taps of a phase are evenly spaced, so nothing of this is a table: an axis is a few numbers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace quern::kernels {

struct Tap {
  int64_t kernel;  // its index in the weight
  int64_t offset;
  int64_t plane, shift;
};

struct Phase {
  int64_t start, count;         // of its outputs
  int64_t taps;                 // how many, by ascending offset
  int64_t kernel, kernel_step;  // of the first; from one to the next
  int64_t offset, offset_step;

  int64_t last_offset() const { return offset + (taps - 1) * offset_step; }
};

struct Axis {
  int64_t source;               // pixels read
  int64_t output, output_step;  // pixels stored; distance of a phase's neighbours
  int64_t step;                 // source pixels between neighbours of a plane
  int64_t stretch;              // plane pixels between neighbouring outputs; stride = step·stretch
  int64_t kernel, pad, dilation;
  bool backward;             // is it of dgrad?
  bool plane_a_tap = false;  // of its only phase
  int64_t planes = 0;
  int64_t lead = 0;   // position 0 of a plane is source pixel lead·step + remainder
  int64_t reach = 0;  // largest shift

  /// The first is the longest.
  int64_t phases() const { return std::min(output, output_step); }
  Phase phase(int64_t i) const;
  Tap tap(const Phase& phase, int64_t i) const;  ///< i < phase.taps
  /// The taps of the phase that has most of them.
  int64_t most_taps() const;

  int64_t stride() const { return step * stretch; }
  int64_t longest_phase() const { return (output + output_step - 1) / output_step; }
  /// Positions that `outputs` neighbouring outputs read of a plane.
  int64_t extent(int64_t outputs) const { return (outputs - 1) * stretch + 1 + reach; }
  /// The source pixel at a position, when position 0 belongs to output `first`; may be padding.
  int64_t source_at(int64_t plane, int64_t first, int64_t position) const {
    return (first * stretch + position + lead) * step + remainder(plane);
  }
  /// Of a plane's pixels modulo step; where each tap has a plane, its offset.
  int64_t remainder(int64_t plane) const;
  struct Range {
    int64_t begin, end;
    bool operator==(const Range&) const = default;
  };
  /// The positions [begin, end) of the first `extent` that are source pixels and not padding.
  Range inside(int64_t plane, int64_t first, int64_t extent) const;
  /// The taps [begin, end) of a phase that read a source pixel for output i.
  Range live_taps(const Phase& phase, int64_t i) const;
  /// The outputs [begin, end) of a phase for which a tap of it reads a source pixel.
  Range live_outputs(const Phase& phase, const Tap& tap) const;
  /// Does no output read padding, or none that is more than `gap` pixels away?
  bool reads_no_padding(int64_t gap = 0) const;
};

/// An axis of one phase with a plane for each tap.
Axis with_plane_a_tap(Axis axis);

/// y = conv(x): `input` pixels, `output` outputs.
Axis forward_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                  int64_t dilation);
/// The same in one plane of all pixels, whose outputs are `stride` positions apart: a row of taps
/// reads consecutive positions. Dilation 1.
Axis plain_forward_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad);
/// dx of the same convolution: the source is dy with `output` pixels, stored are `input`.
Axis dgrad_axis(int64_t input, int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                int64_t dilation);

}  // namespace quern::kernels
