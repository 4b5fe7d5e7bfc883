#include "quern/ops/pad.h"

#include <algorithm>

#include "quern/autograd/node.h"
#include "quern/tensor/check_dense.h"
#include "quern/tensor/convert.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/raw.h"
#include "quern/tensor/span.h"

namespace quern {
namespace {

/// A dimension, or neighbours in memory as one.
struct Axis {
  int64_t before, in, out;  // elements of value in front of x's, of x, of y
};

/// Outermost in memory first: planes, at the least one, then rows and columns. What is not padded
/// is part of the axis around it.
std::vector<Axis> axes_of(const Tensor& x, const Shape& padded, const Shape& before) {
  std::vector<Axis> axes;  // innermost first
  const MemoryFormat format = x.format();
  for (int i = x.dim() - 1; i >= 0; --i) {
    const int d = dimension_at(i, format);
    const Axis axis{before[d], x.shape()[d], padded[d]};
    if (axes.empty() || axes.back().in != axes.back().out) axes.push_back(axis);
    else {
      const int64_t n = axes.back().in;
      axes.back() = {axis.before * n, axis.in * n, axis.out * n};
    }
  }
  while (axes.size() < 3) axes.push_back({0, 1, 1});
  std::reverse(axes.begin(), axes.end());
  return axes;
}

/// Rows first ... last-1 of y, counted over all axes but the columns, each element once.
template <class Word>
void write_rows(const std::vector<Axis>& axes, const Word* x, Word value, Word* y, int64_t first,
                int64_t last) {
  const Axis columns = axes.back(), rows = axes[axes.size() - 2];
  const int64_t after = columns.before + columns.in, size = sizeof(Word);
  for (int64_t row = first; row < last;) {
    int64_t plane = row / rows.out, from = 0, planes = 1;  // where it lies in x
    bool inside = true;
    for (size_t i = axes.size() - 2; i-- > 0;) {
      const int64_t at = plane % axes[i].out - axes[i].before;
      inside = inside && at >= 0 && at < axes[i].in;
      from += at * planes;
      planes *= axes[i].in, plane /= axes[i].out;
    }
    // Of this plane: value, rows with some of x from `begin` to `end`, value.
    const int64_t r = row % rows.out, stop = std::min(rows.out, r + last - row);
    const int64_t begin = inside ? std::clamp(rows.before, r, stop) : stop;
    const int64_t end = inside ? std::clamp(rows.before + rows.in, begin, stop) : stop;
    const auto at = [&](int64_t k) { return y + (row + k - r) * columns.out; };
    std::fill(at(r), at(begin), value);
    for (int64_t k = begin; k < end; ++k) {
      std::fill_n(at(k), columns.before, value);
      std::fill(at(k) + after, at(k + 1), value);
    }
    if (begin < end && columns.in > 0)
      detail::copy_rows(reinterpret_cast<std::byte*>(at(begin) + columns.before),
                        columns.out * size,
                        reinterpret_cast<const std::byte*>(
                            x + (from * rows.in + begin - rows.before) * columns.in),
                        columns.in * size, end - begin, columns.in * size);
    std::fill(at(end), at(stop), value);
    row += stop - r;
  }
}

/// x of `shape`, `value` where it has no elements; x begins at `before`.
Tensor padded(const Tensor& any_x, const Shape& shape, const Shape& before, double value) {
  const Tensor x = raw::contiguous(any_x, any_x.format());
  const Tensor y = empty(shape, x.dtype(), x.format()), element = full({}, value, x.dtype());
  if (y.numel() == 0) return y;
  const std::vector<Axis> axes = axes_of(x, shape, before);
  const int64_t width = axes.back().out;
  constexpr int64_t kGrain = 1 << 13;  // elements a cell, as of copies
  detail::visit_itemsize(itemsize(x.dtype()), [&]<class Word>(Word) {
    const auto* from = static_cast<const Word*>(x.data_ptr());
    auto* to = static_cast<Word*>(y.out_ptr());
    const Word same = *static_cast<const Word*>(element.data_ptr());
    parallel_chunks(
        y.numel() / width, std::max<int64_t>(1, kGrain / width),
        [&](int64_t begin, int64_t end) { write_rows(axes, from, same, to, begin, end); });
  });
  return y;
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<int64_t>& padding, double value) {
  detail::check_dense("pad", "x", x);
  const int pairs = static_cast<int>(padding.size() / 2);
  check(padding.size() % 2 == 0 && pairs <= x.dim(), "pad",
        "padding: expected up to {} pairs of sizes for {}, got {} sizes", x.dim(), x,
        padding.size());
  constexpr int64_t kMost = int64_t{1} << 60;  // keeps their sum in range
  Shape shape = x.shape(), before = Shape::filled(x.dim(), 0);
  for (size_t i = 0; i < padding.size(); ++i) {
    check(padding[i] >= 0 && padding[i] <= kMost, "pad", "padding: expected sizes of 0..{}, got {}",
          kMost, padding[i]);
    const int d = x.dim() - 1 - static_cast<int>(i / 2);
    shape[d] += padding[i];
    if (i % 2 == 0) before[d] = padding[i];
  }

  const Span span("pad");
  Tensor y = padded(x, shape, before, value);
  if (!is_floating(x.dtype())) return y;

  return record(
      "pad", std::move(y), {x},
      [before, inner = x.shape()](const Tensor& dy, Needs) -> Tensors {
        Tensor dx = dy;
        for (int d = 0; d < inner.size(); ++d)
          dx = raw::slice(dx, d, before[d], before[d] + inner[d]);
        return {dx};
      },
      GradDType::any);
}

}  // namespace quern
