// Where element (n, c, y, x) of an image tensor lies: dense in either format, or in channels_last
// with a gap of some pixels after each row.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/accumulator.h"
#include "quern/tensor/memory_format.h"

namespace quern::kernels {

struct ImageStrides {
  int64_t n, c, y, x;  // in elements

  ImageStrides(MemoryFormat format, int64_t channels, int64_t height, int64_t width,
               int64_t gap = 0)
      : n(channels * height * (width + gap)) {
    if (format == MemoryFormat::channels_last) c = 1, x = channels, y = (width + gap) * channels;
    else c = height * width, y = width, x = 1;
  }
};

}  // namespace quern::kernels
