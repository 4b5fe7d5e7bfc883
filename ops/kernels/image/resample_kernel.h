// The contract of the kernels that resize pictures: weighted sums of 8-bit values in fixed point,
// rounded to 8 bits, along a row of pixels or down columns. Files compiled with ISA flags include
// this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

inline constexpr int kResampleBits = 22;  ///< of a weight, below the point

/// Along one axis: output i is the sum of weights[i·taps + k] · input[begin[i] + k], k < count[i].
struct ResampleAxis {
  int64_t size, taps;
  const int64_t *begin, *count;  // [size]
  const int32_t* weights;        // [size][taps], none negative
};

struct ResampleKernel {
  const char* name;  // resample_<isa>; the naive one ends in _reference
  Isa isa;
  /// out [size][3] from pixels in [..][3], the last output first where `flip`. A byte after the
  /// last pixel of either may be read and written.
  void (*along)(const uint8_t* in, const ResampleAxis&, bool flip, uint8_t* out);
  /// out[i], i < values: the sum of weights[k] · in[k·step + i], k < count.
  void (*down)(const uint8_t* in, int64_t step, const int32_t* weights, int64_t count,
               int64_t values, uint8_t* out);
};

}  // namespace quern::kernels
