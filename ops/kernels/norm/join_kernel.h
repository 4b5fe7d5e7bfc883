// The contract of the join kernels: where the branch and the shortcut of a residual block meet, the
// last batch norm, the sum and the activation are one pass, and their gradient two. They see one
// nhwc block, rows (pixels) by channels, as the batch_norm kernels do. Files compiled with ISA
// flags include this.
#pragma once
#include "quern/ops/kernels/epilogue.h"
#include "quern/ops/kernels/norm/batch_norm_kernel.h"

namespace quern::kernels {

/// One of the two that meet. `v` and `dv` are elements, the others [channels] in what is computed
/// in; null where a pass has no use for it.
struct JoinSide {
  const void* v = nullptr;                              // null: no such side
  ChannelMap map = {};                                  // null: 0, 1 and 0
  const void *a = nullptr, *b = nullptr, *c = nullptr;  // of dv; null: 1, 0 and 0
  void* dv = nullptr;                                   // null: not asked for
};

/// Where a join's activation, if it only clamps, let its sum pass, a bit an element: bit c % 16 of
/// word c / 16 of a row's words is channel c's. A block's first channel is a multiple of 16.
using MaskWord = uint16_t;
inline int64_t mask_words(int64_t channels) { return (channels + 15) / 16; }  // of a row

/// What a block whose channels are summed has at most.
inline constexpr int64_t kJoinChannels = 2048;

/// Of the output.
struct JoinGradient {
  const void* dout;  // elements
  /// [rows][mask_words(stride)]. null: the slope is that of the activation at the branch, which has
  /// no shortcut then unless the activation is none
  const MaskWord* mask = nullptr;
  /// The gradient is dout·scale + shift, [channels] of an image: the output, which its means gate
  /// (SqueezeExcitation), was multiplied by scale. For reduce(), without a shortcut or a mask.
  /// null: it is dout
  const void *scale = nullptr, *shift = nullptr;
};

/// A side has a map or none; the branch always has them and, where dv is asked
/// for, a, b and c. The activation is that of the branch's map.
/// streams: out and what is not written in place of dout bypass the caches; their rows start at
/// whole cache lines then.
struct JoinKernel {
  const char* name;  // join_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  DType dtype;
  /// out = activation(sum), the sum of both sides' (v - center)·scale + shift. mask, [rows]
  /// [mask_words(stride)], or null. sums = Σout before it is rounded, without a shortcut or a mask,
  /// or null.
  void (*forward)(const BatchNormBlock&, const JoinSide& branch, const JoinSide& shortcut,
                  void* out, MaskWord* mask, double* sums, bool streams);
  // dz = the gradient where the mask says so, else 0; without one, the gradient times the slope.
  /// sums[0] = Σdz, sums[1] = Σdz·(branch.v - center) and, if shortcut.map.center, sums[2] the same
  /// of shortcut.v. Where branch.dv is not null and the slope is of no clamp or the gradient is
  /// scaled, it becomes dz, for an apply() without an activation; dout may be it.
  void (*reduce)(const BatchNormBlock&, const JoinSide& branch, const JoinSide& shortcut,
                 const JoinGradient&, double* const* sums);
  /// dv = a·dz + b·(v - center) + c of the branch and, if it asks, the shortcut; dout may be one of
  /// them.
  void (*apply)(const BatchNormBlock&, const JoinSide& branch, const JoinSide& shortcut,
                const JoinGradient&, bool streams);
};

}  // namespace quern::kernels
