#include "quern/tensor/raw.h"

#include <bitset>
#include <optional>

#include "quern/tensor/check_dense.h"

namespace quern::raw {
namespace {

/// Without elements there is nothing to skip, and nothing that an offset could point at.
Tensor view(const Tensor& t, const Shape& shape, const Strides& strides, int64_t offset) {
  if (numel(shape) == 0) offset = t.offset();
  return Tensor(t.storage(), shape, strides, offset, t.dtype());
}

/// The strides that show t's elements as `shape` (of as many elements), if there are any. Both are
/// walked from the innermost dimension: neighbours of t that are evenly spaced make a run, which
/// new dimensions divide among themselves.
std::optional<Strides> reshaped_strides(const Tensor& t, const Shape& shape) {
  if (t.numel() == 0) return contiguous_strides(shape);
  Strides strides = shape;
  int64_t left = 1;    // elements of the run not yet given to a new dimension
  int64_t step = 1;    // their distance
  int next = t.dim();  // dimensions of t from here on belong to runs already opened
  for (int d = shape.size() - 1; d >= 0; --d) {
    if (left == 1 && shape[d] != 1) {
      while (t.shape()[next - 1] == 1) --next;
      --next;
      left = t.shape()[next];
      step = t.strides()[next];
      while (next > 0 && (t.shape()[next - 1] == 1 || t.strides()[next - 1] == left * step))
        left *= t.shape()[--next];
    }
    if (left % shape[d] != 0) return std::nullopt;
    strides[d] = step;
    step *= shape[d];
    left /= shape[d];
  }
  return strides;
}

/// `shape` with its -1, if any, replaced by what makes it hold as many elements as t.
Shape deduced_shape(const Tensor& t, Shape shape) {
  const Shape asked = shape;
  int unknown = -1;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] != -1) continue;
    check(unknown < 0, "reshape", "shape: expected at most one -1, got {}", asked);
    unknown = d;
    shape[d] = 1;
  }
  const int64_t known = numel(shape);
  if (unknown >= 0) {
    check(known > 0 && t.numel() % known == 0, "reshape",
          "shape: expected sizes whose product divides {} elements, got {} for {}", t.numel(),
          asked, t);
    shape[unknown] = t.numel() / known;
  }
  check(numel(shape) == t.numel(), "reshape", "shape: expected {} elements, got {} for {}",
        t.numel(), asked, t);
  return shape;
}

}  // namespace

Tensor as_strided(const Tensor& t, const Shape& shape, const Strides& strides, int64_t offset) {
  detail::check_dense("as_strided", "tensor", t);
  return view(t, shape, strides, offset);
}

Tensor permute(const Tensor& t, const Dims& order) {
  detail::check_dense("permute", "tensor", t);
  check(order.size() == t.dim(), "permute", "order: expected {} dimensions for {}, got {}", t.dim(),
        t, order);
  Shape shape = t.shape();
  Strides strides = t.strides();
  std::bitset<kMaxDims> seen;
  for (int i = 0; i < order.size(); ++i) {
    const int d = normalize_dim("permute", order[i], t.dim());
    check(!seen[static_cast<size_t>(d)], "permute", "order: expected each dimension once, got {}",
          order);
    seen.set(static_cast<size_t>(d));
    shape[i] = t.shape()[d];
    strides[i] = t.strides()[d];
  }
  return view(t, shape, strides, t.offset());
}

Tensor transpose(const Tensor& t, int64_t dim0, int64_t dim1) {
  detail::check_dense("transpose", "tensor", t);
  const int a = normalize_dim("transpose", dim0, t.dim());
  const int b = normalize_dim("transpose", dim1, t.dim());
  Shape shape = t.shape();
  Strides strides = t.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return view(t, shape, strides, t.offset());
}

Tensor slice(const Tensor& t, int64_t dim, int64_t start, int64_t end, int64_t step) {
  detail::check_dense("slice", "tensor", t);
  const int d = normalize_dim("slice", dim, t.dim());
  check(step >= 1, "slice", "step: expected at least 1, got {}", step);
  const int64_t size = t.shape()[d];
  const auto bound = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
  };
  const int64_t first = bound(start);
  const int64_t count = std::max<int64_t>(bound(end) - first, 0);
  Shape shape = t.shape();
  Strides strides = t.strides();
  shape[d] = count / step + (count % step != 0);
  if (shape[d] > 1) strides[d] *= step;
  return view(t, shape, strides, t.offset() + first * t.strides()[d]);
}

Tensor select(const Tensor& t, int64_t dim, int64_t index) {
  detail::check_dense("select", "tensor", t);
  const int d = normalize_dim("select", dim, t.dim());
  const int64_t size = t.shape()[d];
  check(index >= -size && index < size, "select", "index: expected {}..{}, got {}", -size, size - 1,
        index);
  Shape shape = t.shape();
  Strides strides = t.strides();
  shape.erase(d);
  strides.erase(d);
  const int64_t at = index < 0 ? index + size : index;
  return view(t, shape, strides, t.offset() + at * t.strides()[d]);
}

Tensor expand(const Tensor& t, const Shape& shape) {
  detail::check_dense("expand", "tensor", t);
  numel(shape);
  const int lead = shape.size() - t.dim();
  check(lead >= 0, "expand", "shape: expected at least {} dimensions for {}, got {}", t.dim(), t,
        shape);
  Strides strides = Strides::filled(shape.size(), 0);
  for (int d = 0; d < t.dim(); ++d) {
    const int64_t size = t.shape()[d];
    check(size == shape[lead + d] || size == 1, "expand",
          "shape: expected the sizes of {} where they are not 1, got {}", t, shape);
    if (size == shape[lead + d]) strides[lead + d] = t.strides()[d];
  }
  return view(t, shape, strides, t.offset());
}

Tensor squeeze(const Tensor& t, int64_t dim) {
  detail::check_dense("squeeze", "tensor", t);
  const int d = normalize_dim("squeeze", dim, t.dim());
  return t.shape()[d] == 1 ? select(t, d, 0) : alias(t);
}

Tensor unsqueeze(const Tensor& t, int64_t dim) {
  detail::check_dense("unsqueeze", "tensor", t);
  const int d = normalize_dim("unsqueeze", dim, t.dim() + 1);
  Shape shape = t.shape();
  Strides strides = t.strides();
  const int64_t stride = d < t.dim() ? shape[d] * strides[d] : 1;
  shape.insert(d, 1);
  strides.insert(d, stride);
  return view(t, shape, strides, t.offset());
}

Tensor alias(const Tensor& t) {
  detail::check_dense("alias", "tensor", t);
  return view(t, t.shape(), t.strides(), t.offset());
}

Tensor reshape(const Tensor& t, const Shape& shape) {
  detail::check_dense("reshape", "tensor", t);
  const Shape target = deduced_shape(t, shape);
  if (const auto strides = reshaped_strides(t, target))
    return view(t, target, *strides, t.offset());
  return view(contiguous(t), target, contiguous_strides(target), 0);
}

}  // namespace quern::raw
