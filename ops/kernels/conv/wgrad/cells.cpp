#include "quern/ops/kernels/conv/wgrad/cells.h"

#include <algorithm>
#include <cstddef>

namespace quern::kernels {

Prefetch WgradOperands::prefetch_of(const Block& block, const Extent& of_x, const Extent& of_dy,
                                    int64_t item) const {
  Prefetch prefetch;
  const auto add = [&](const void* base, const ImageStrides& strides, const Extent& channels,
                       int64_t begin, int64_t end) {
    prefetch.add(base, item, strides, channels, {block.image, block.images, begin, end - begin});
  };
  add(dy_, dy_strides_, of_dy, block.row, block.row + block.rows);
  const int64_t begin = std::max<int64_t>(block.row * p_.stride_h - p_.pad_h, 0);
  const int64_t end = std::min(p_.ih, (block.row + block.rows - 1) * p_.stride_h - p_.pad_h +
                                          (p_.kh - 1) * p_.dilation_h + 1);
  add(x_, x_strides_, of_x, begin, end);
  return prefetch;
}

}  // namespace quern::kernels
