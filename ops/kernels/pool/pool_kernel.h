// The contract of the pool kernels. They see images [h][w][channels]: those of a channels_last
// tensor, or the planes of a contiguous one as images of one channel. A call makes one row of the
// output (backward: of dx), every element of which it writes once: rows are independent. Windows
// come as tables an axis, so that strided, padded and adaptive windows look the same, and backward
// is a gather like forward. Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

struct PoolRange {
  int64_t begin, end;
};

struct PoolAxis {
  int64_t in, out;
  // For max_pool: tap t of output o is input o·stride - padding + t·dilation.
  int64_t stride, padding, dilation;
  int64_t kernel;            // number of taps
  const PoolRange* inputs;   // [out] o reads begin, begin + dilation, ... below end
  const PoolRange* outputs;  // [in] those that may read input i
  const int64_t* divisor;    // [out] for avg_pool: a sum is divided by that of h times that of w
};

struct Pool {
  int64_t channels;
  PoolAxis h, w;
  bool wide_index;  // an index is an i32, not a u8: more than 256 taps
};

/// Elements of a plane, at most, whose gradient is made as a whole.
inline constexpr int64_t kSmallPlane = 4096;

struct PoolKernel {
  // pool_<dtype>_<layout>_<isa>; the naive one, for both layouts, ends in _reference
  const char* name;
  Isa isa;
  DType dtype;
  int64_t min_channels, max_channels;  // vectors lie along channels, or along the rows of one
  int64_t max_taps;  // of a window: their numbers are exact; an index ends at 2^31
  /// y [w.out][channels] and, unless null, index: the number th·w.kernel + tw of the tap that holds
  /// the maximum. That is the first of the largest; NaN is larger than any, the last of them the
  /// largest.
  void (*max_forward)(const Pool&, const void* x, int64_t row, void* y, void* index);
  void (*max_backward)(const Pool&, const void* dy, const void* index, int64_t row, void* dx);
  /// Of `channels` alone.
  void (*avg_forward)(const Pool&, const void* x, int64_t row, PoolRange channels, void* y);
  void (*avg_backward)(const Pool&, const void* dy, int64_t row, void* dx);
  /// max_backward of all rows of a plane of up to kSmallPlane elements, where an index is a u8;
  /// null where vectors lie along channels.
  void (*max_backward_plane)(const Pool&, const void* dy, const uint8_t* index, void* dx) = nullptr;
};

}  // namespace quern::kernels
