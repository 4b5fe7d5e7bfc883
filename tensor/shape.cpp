#include "quern/tensor/shape.h"

#include <fmt/format.h>

#include <limits>

namespace quern {

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ",")); }

int64_t numel(const Shape& shape) {
  // Sizes of zero are left out of the limit's product, so that no partial product of strides
  // overflows.
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 8;
  int64_t product = 1;
  bool any_zero = false;
  for (int64_t size : shape) {
    check(size >= 0, "shape", "sizes: expected none negative, got {}", shape);
    any_zero |= size == 0;
    if (size == 0) continue;
    check(size <= kLimit / product, "shape",
          "sizes: expected a product below 2^60 elements, got {}", shape);
    product *= size;
  }
  return any_zero ? 0 : product;
}

Strides dense_strides(const Shape& shape, MemoryFormat format) {
  check(format == MemoryFormat::contiguous || shape.size() == 4, "shape",
        "channels_last: expected 4 dimensions, got {}", shape);
  Strides strides = shape;
  int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    const int d = dimension_at(i, format);
    strides[d] = step;
    step *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  Shape result = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  const int lead = result.size() - shorter.size();
  for (int d = 0; d < shorter.size(); ++d) {
    int64_t& size = result[lead + d];
    check(size == shorter[d] || size == 1 || shorter[d] == 1, op,
          "shapes: expected equal sizes or 1 in each dimension from the last, got {} and {}", a, b);
    if (size == 1) size = shorter[d];
  }
  return result;
}

int normalize_dim(std::string_view op, int64_t dim, int rank) {
  check(rank > 0, op, "dim: expected a tensor with dimensions, got a scalar and dim {}", dim);
  check(dim >= -rank && dim < rank, op, "dim: expected {}..{}, got {}", -rank, rank - 1, dim);
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

}  // namespace quern
