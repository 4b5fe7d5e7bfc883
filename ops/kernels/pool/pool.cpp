#include "quern/ops/kernels/pool/pool.h"

#include <algorithm>
#include <cstddef>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/reduce/row.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"

namespace quern::kernels {
namespace {

/// Runs body(image, row) for all rows of all images, a number at a time that is worth a thread.
template <class F>
void each_row(int64_t images, int64_t rows, int64_t work_a_row, F body) {
  constexpr int64_t kWork = 1 << 13;  // elements read or written
  const int64_t grain = std::max<int64_t>(1, kWork / std::max<int64_t>(1, work_a_row));
  parallel_chunks(images * rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / rows, i % rows);
  });
}

/// An array of images, each of h rows of so many bytes.
struct Rows {
  int64_t h, bytes;

  const std::byte* at(const void* p, int64_t image, int64_t row) const {
    return static_cast<const std::byte*>(p) + (image * h + row) * bytes;
  }
  std::byte* at(void* p, int64_t image, int64_t row) const {
    return static_cast<std::byte*>(p) + (image * h + row) * bytes;
  }
};
Rows in_rows(const PoolKernel& kernel, const Pool& pool) {
  return {pool.h.in, pool.w.in * pool.channels * itemsize(kernel.dtype)};
}
Rows out_rows(const PoolKernel& kernel, const Pool& pool) {
  return {pool.h.out, pool.w.out * pool.channels * itemsize(kernel.dtype)};
}
Rows index_rows(const Pool& pool) {
  return {pool.h.out, pool.w.out * pool.channels * (pool.wide_index ? 4 : 1)};
}

/// Is each plane a window, a row for its sum? (f64 has no vectors there.)
bool means_planes(const PoolKernel& kernel, const Pool& pool) {
  const auto whole = [](const PoolAxis& axis) {
    return axis.out == 1 && axis.inputs[0].begin == 0 && axis.inputs[0].end == axis.in;
  };
  return kernel.max_channels == 1 && kernel.dtype != DType::f64 && whole(pool.h) && whole(pool.w);
}
void mean_planes(DType dtype, const Pool& pool, int64_t planes, const void* x, void* y) {
  const int64_t n = pool.h.in * pool.w.in, at_once = rows_at_once(n);
  const auto divisor = static_cast<float>(pool.h.divisor[0] * pool.w.divisor[0]);
  const RowKernel& sum = select_row("pool", RowOp::sum, dtype);
  visit_floating("pool", dtype, [&]<class T>(std::type_identity<T>) {
    each_row(ceil_div(planes, at_once), 1, n * at_once, [&](int64_t group, int64_t) {
      const int64_t first = group * at_once, count = std::min(at_once, planes - first);
      float sums[kRowsAtOnce];
      sum.run({.n = n, .count = count, .x = static_cast<const T*>(x) + first * n, .out = sums});
      for (int64_t i = 0; i < count; ++i)
        static_cast<T*>(y)[first + i] = static_cast<T>(sums[i] / divisor);
    });
  });
}

}  // namespace

int64_t pooled_size(int64_t in, const PoolStep& step, bool ceil_mode) {
  const int64_t window = step.dilation * (step.kernel - 1) + 1;
  const int64_t room = in + 2 * step.padding - window + (ceil_mode ? step.stride - 1 : 0);
  if (room < 0) return 0;
  const int64_t out = room / step.stride + 1;
  return ceil_mode && (out - 1) * step.stride >= in + step.padding ? out - 1 : out;
}

PoolWindows strided_windows(int64_t in, int64_t out, const PoolStep& step, bool count_include_pad) {
  const auto [kernel, stride, padding, dilation] = step;
  const int64_t window = dilation * (kernel - 1) + 1;
  PoolWindows windows{in, out, kernel, stride, padding, dilation, {}, {}, {}};
  windows.inputs.reserve(static_cast<size_t>(out));
  windows.divisor.reserve(static_cast<size_t>(out));
  windows.outputs.reserve(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    const int64_t start = o * stride - padding, end = start + window;
    const int64_t outside =
        std::max<int64_t>(0, ceil_div(-start, dilation));  // taps before the image
    const PoolRange inside{start + outside * dilation, std::min(end, in)};
    windows.inputs.push_back(inside);
    windows.divisor.push_back(count_include_pad ? std::min(end, in + padding) - start
                                                : inside.end - inside.begin);
  }
  for (int64_t i = 0; i < in; ++i)
    windows.outputs.push_back(
        {std::clamp<int64_t>(ceil_div(i + padding - window + 1, stride), 0, out),
         std::min(out, (i + padding) / stride + 1)});
  return windows;
}

PoolWindows adaptive_windows(int64_t in, int64_t out) {
  // Output o reads input i if the intervals o/out .. (o+1)/out and i/in .. (i+1)/in overlap.
  const auto overlaps = [](int64_t n, int64_t others) {
    CachedVector<PoolRange> ranges;
    ranges.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
      ranges.push_back({i * others / n, ceil_div((i + 1) * others, n)});
    return ranges;
  };
  PoolWindows windows;
  windows.in = in, windows.out = out;
  windows.inputs = overlaps(out, in), windows.outputs = overlaps(in, out);
  windows.divisor.reserve(windows.inputs.size());
  for (const PoolRange& range : windows.inputs) windows.divisor.push_back(range.end - range.begin);
  return windows;
}

void max_pool_forward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* x,
                      void* y, void* index) {
  const Rows in = in_rows(kernel, pool), out = out_rows(kernel, pool), taps = index_rows(pool);
  const int64_t work = pool.w.out * pool.channels * pool.h.kernel * pool.w.kernel;
  each_row(images, pool.h.out, work, [&](int64_t image, int64_t row) {
    kernel.max_forward(pool, in.at(x, image, 0), row, out.at(y, image, row),
                       index == nullptr ? nullptr : taps.at(index, image, row));
  });
}

void max_pool_backward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* dy,
                       const void* index, void* dx) {
  const Rows in = in_rows(kernel, pool), out = out_rows(kernel, pool), taps = index_rows(pool);
  const int64_t plane = pool.h.in * pool.w.in;
  if (kernel.max_backward_plane && !pool.wide_index && plane <= kSmallPlane)
    return each_row(images, 1, plane, [&](int64_t image, int64_t) {
      kernel.max_backward_plane(pool, out.at(dy, image, 0),
                                reinterpret_cast<const uint8_t*>(taps.at(index, image, 0)),
                                in.at(dx, image, 0));
    });
  each_row(images, pool.h.in, pool.w.in * pool.channels, [&](int64_t image, int64_t row) {
    kernel.max_backward(pool, out.at(dy, image, 0), taps.at(index, image, 0), row,
                        in.at(dx, image, row));
  });
}

void avg_pool_forward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* x,
                      void* y) {
  if (means_planes(kernel, pool)) return mean_planes(kernel.dtype, pool, images, x, y);
  const Rows in = in_rows(kernel, pool), out = out_rows(kernel, pool);
  // Of few rows, each is cut into some of its channels, by whole cache lines, where these are worth
  // waking a thread.
  constexpr int64_t kRows = 4, kWork = 1 << 16;  // elements
  const int64_t line = cache::kLine / itemsize(kernel.dtype);
  const int64_t work = ceil_div(pool.h.in, pool.h.out) * pool.w.in * pool.channels;
  const int64_t most = kRows / std::max<int64_t>(1, images * pool.h.out);
  const int64_t pieces =
      std::clamp<int64_t>(std::min(most, work / kWork), 1, ceil_div(pool.channels, line));
  const int64_t channels = round_up(ceil_div(pool.channels, pieces), line);
  each_row(images * pieces, pool.h.out, work / pieces, [&](int64_t piece, int64_t row) {
    const int64_t image = piece / pieces, first = piece % pieces * channels;
    if (first < pool.channels)
      kernel.avg_forward(pool, in.at(x, image, 0), row,
                         {first, std::min(first + channels, pool.channels)}, out.at(y, image, row));
  });
}

void avg_pool_backward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* dy,
                       void* dx) {
  const Rows in = in_rows(kernel, pool), out = out_rows(kernel, pool);
  each_row(images, pool.h.in, pool.w.in * pool.channels, [&](int64_t image, int64_t row) {
    kernel.avg_backward(pool, out.at(dy, image, 0), row, in.at(dx, image, row));
  });
}

}  // namespace quern::kernels
