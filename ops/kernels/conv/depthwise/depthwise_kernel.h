// The contract of the depthwise kernels: convolutions in which a channel meets its own filter only
// (one with several filters comes once for each, depthwise.h),
//
//     y[pixel][c] = Σ over taps of x[pixel under the tap][c] · weight[tap][c],
//
// so that vectors lie along channels, and nothing is summed over them; or in which it meets the
// few of its group (grouped_simd.h, permuted_simd.h), [tap][channel of the group][c] then, or
// [tap][pair of channels][c] of two bf16 each, in the place of a float. A call makes one row of
// outputs of some channels. Channels are innermost, in the tensor itself or in a copy
// (depthwise.h). What the kernels see of a convolution is what axis.h makes of it: forward and
// dgrad are the same sum, and taps and what they read are evenly spaced.
//
//     source rows            weight                  Taps beyond the source's first or last pixel
//     ┌──────────────┐       ┌─────┐                 are left out: padding is not multiplied. Rows
//     │ x x x        │ · tap │w w w│ = output        that are padding the caller leaves out.
//     │ x x x        │ rows  │w w w│
//     └──────────────┘       └─────┘
//
// A record an instruction set and dtype of the source; weights and sums are f32. Seen by files with
// ISA flags.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

/// Channels of a row are at least so many, the floats of the longest vector: where it is no
/// multiple of a kernel's vector, the last vector overlaps the one before.
inline constexpr int64_t kDepthwiseChannels = 16;

/// What becomes of stored sums: + shift, then through an activation. Or, of channels with a filter
/// each, they are stored as they are, and their moments are taken: first += Σ(sum - pivot) and
/// second += Σ(sum - pivot)², before they are rounded.
struct DepthwiseStore {
  const float* shift = nullptr;  // [channels]; null: 0
  Activation activation = Activation::none;
  const float* pivot = nullptr;               // [channels], with moments
  float *first = nullptr, *second = nullptr;  // null: no moments
  /// To the next row of what is stored, whose lines are owned meanwhile; 0: none.
  int64_t to_next_row = 0;
  /// Stores bypass the caches, where an instruction does that (cache::bypassed).
  bool streams = false;
};

/// Which pixels a row of outputs reads. Output i meets, under tap (r, t), pixel
/// i·stride + offset + t·offset_step of row r. Strides count elements.
struct DepthwiseWindow {
  const void* source;              // pixel 0 of the row under the first tap row
  int64_t source_row;              // to the row under the next
  int64_t pixel;                   // from a pixel to the next
  int64_t width;                   // pixels of a row: those outside are padding
  int64_t rows, taps;              // of the window; either may be 0
  int64_t weight_row, weight_tap;  // from a tap to the next, in the weight
  int64_t outputs, stride, offset, offset_step;
  int64_t channels;
  /// Channels of a group: an output meets all of its group's, with weights that are so far apart.
  int64_t group = 1, weight_channel = 0;
  /// Not null, of groups that the kernel permutes: output c meets `steps` of the pixel's
  /// `source_channels`, from index[c] on, with weights `weight_channel` apart. `source` is at
  /// channel 0.
  const int32_t* index = nullptr;  // [channels]
  int64_t steps = 1, source_channels = 0;
  /// The last rows of the window are prefetched for the next row of outputs, `to_next_row` elements
  /// further on, and so is the next row of dy; 0: none.
  int64_t fresh = 0, to_next_row = 0;
};

/// Rows of outputs one below the other, of a window of as many rows as taps, which are neighbours,
/// that moves down as it moves along.
struct DepthwiseRows {
  int64_t count;       // of outputs
  int64_t begin, end;  // rows that the source has, from the first row of the first window on
  int64_t out_row;     // from a row of outputs to the next, in elements
};

/// A plane, of one channel or of few: vectors lie along rows. Output (i, j) meets,
/// under tap (r, t), pixel (i + top + r, j + left + t·step).
struct DepthwisePlane {
  /// Pixel (0, 0). What vectors reach before and behind the plane is readable; lanes that are no
  /// pixels of the row do not matter.
  const void* source;
  int64_t height, width;
  int64_t rows, taps;  // of the window
  int64_t weight_row, weight_tap;
  int64_t out_height, out_width;
  int64_t top, left, step;
  /// So many planes follow each other, each `height` rows, which an output sums over with weights
  /// that are so far apart.
  int64_t sources = 1, weight_source = 0;
  /// Not 0: so many channels lie side by side in rows, whose widths, left and step count them all.
  /// A tap's weights, and shifts, are repeated to as many and a vector more.
  int64_t channels = 0;
};
/// Both gradients of a row of x at once, whose pixels are the outputs of a window of dy, of at most
/// kBackwardTaps neighbouring taps: what x and dy bring to the core serves both.
struct DepthwiseBackward {
  const void* x;
  void* dx;
  int64_t pixel;  // from a pixel of x, and of dx, to the next
  /// How x is read, whose gradient then goes through it, too (Epilogue::Kind::gradient); without a
  /// scale: as it is.
  ChannelMap map;
  float* gradient;          // += Σ over pixels of x, as it is read, · dy; lies as the weight does
  float *first, *second;    // += Σdx and Σdx·(x - center) [channels], with a map
  int64_t to_next_row = 0;  // of x and dx, which is prefetched; 0: none
  bool streams = false;     // does dx bypass the caches (cache::bypassed)?
};
inline constexpr int64_t kBackwardTaps = 7;

/// Rows of a plane's window that the kernels take.
inline constexpr bool takes_plane_rows(int64_t rows) {
  return rows == 1 || rows == 2 || rows == 3 || rows == 5 || rows == 7;
}

/// Pixels whose channels are spread: to[step][pixel][c] = from[pixel][index[c] + step].
struct DepthwiseSpread {
  const void* from;  // readable up to kSpreadReach items behind the last pixel
  int64_t from_pixel;
  const int32_t* index;  // [channels], not decreasing
  int64_t channels, steps, pixels;
  void* to;
  int64_t to_step, to_pixel;
};
inline constexpr int64_t kSpreadReach = 64;

struct DepthwiseKernel {
  const char* name;  // depthwise_<dtype>_<isa>
  Isa isa;
  DType dtype;
  /// out[output][channel] = Σ source · weight, in f32; or what that becomes, in dtype. `weight` is
  /// at the first tap of the window.
  void (*sum)(const DepthwiseWindow&, const float* weight, float* out, int64_t out_pixel);
  void (*store)(const DepthwiseWindow&, const float* weight, const DepthwiseStore&, void* out,
                int64_t out_pixel);
  /// The same for several rows, of channels with a filter each, where slides(taps, stride);
  /// without moments, through the caches.
  void (*store_rows)(const DepthwiseWindow&, const DepthwiseRows&, const float* weight,
                     const DepthwiseStore&, void* out, int64_t out_pixel);
  bool (*slides)(int64_t taps, int64_t stride);
  /// Does it take windows with an index, of groups of `in` channels and `out` outputs?
  bool (*permutes)(int64_t in, int64_t out);
  /// The outputs of a plane, rows one after the other. A row narrower than a vector (of at most
  /// kDepthwiseChannels) is written with what follows, ahead of the next: behind the last row, too.
  void (*store_plane)(const DepthwisePlane&, const float* weight, const DepthwiseStore&, void* out);
  /// gradient[tap][channel] += Σ over outputs of source · dy.
  void (*add_gradient)(const DepthwiseWindow&, const void* dy, int64_t dy_pixel, float* gradient);
  /// Of channels with a filter each, stride 1. `weight`, gradient: at the first tap of the window.
  void (*backward)(const DepthwiseWindow&, const float* weight, const DepthwiseBackward&);
  void (*spread)(const DepthwiseSpread&);
  /// Are groups multiplied by pairs of channels?
  bool pairs = false;
  /// Groups are of 1, 2, 4, ... to so many channels.
  int64_t widest_group = 8;

  /// Weights of a group of channels for one output and tap.
  int64_t steps(int64_t group) const { return pairs && group > 1 ? group / 2 : group; }
};

}  // namespace quern::kernels
