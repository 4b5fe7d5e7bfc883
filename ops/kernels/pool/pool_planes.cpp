// The pool kernels on planes of contiguous tensors: portable loops. The state of a stretch of a row
// is kept in the L1 cache, and taps are the outer loop, so that the inner one runs along the row
// without a branch.
#include <algorithm>
#include <limits>

#include "quern/ops/kernels/pool/pool_kernel.h"
#include "quern/ops/kernels/pool/pool_taps.h"
#include "quern/tensor/bfloat16.h"
#include "quern/tensor/divide.h"

namespace quern::kernels {
namespace {

constexpr int64_t kStretch = 256;  // elements of a row
constexpr int64_t kShort = 12;     // a row of fewer windows goes window by window

/// The first o with o·stride + offset >= at; 0 rather than a negative one.
int64_t first_at(int64_t at, int64_t offset, int64_t stride) {
  return at <= offset ? 0 : ceil_div(at - offset, stride);
}

/// T: the elements' type. W: what they are computed in.
template <class T, class W>
struct Planes {
  /// stride 0: that of the axis, not known to the compiler.
  template <int64_t known_stride, class Index>
  static void max_forward_strided(const Pool& pool, const T* x, int64_t row, T* y, Index* index) {
    const PoolAxis& axis = pool.w;
    const int64_t stride = known_stride != 0 ? known_stride : axis.stride;
    const PoolRange rows = pool.h.inputs[row];
    const int64_t first_row = tap_of(pool.h, rows.begin, row) * axis.kernel;
    for (int64_t start = 0; start < axis.out; start += kStretch) {
      const int64_t stop = std::min(axis.out, start + kStretch);
      W best[kStretch];
      int32_t best_tap[kStretch];
      for (int64_t o = start; o < stop; ++o) {
        best[o - start] = -std::numeric_limits<W>::infinity();
        best_tap[o - start] =
            static_cast<int32_t>(first_row + tap_of(axis, axis.inputs[o].begin, o));
      }
      int64_t tap = first_row;
      for (int64_t h = rows.begin; h < rows.end; h += pool.h.dilation)
        for (int64_t tw = 0; tw < axis.kernel; ++tw, ++tap) {
          const int64_t offset = tw * axis.dilation - axis.padding;
          const int64_t begin = std::max(start, first_at(0, offset, stride));
          const int64_t end = std::min(stop, first_at(axis.in, offset, stride));
          const T* from = x + h * axis.in;
          for (int64_t o = begin; o < end; ++o) {
            const W value = static_cast<W>(from[o * stride + offset]);
            const bool larger = (value > best[o - start]) | (value != value);
            best[o - start] = larger ? value : best[o - start];
            best_tap[o - start] = larger ? static_cast<int32_t>(tap) : best_tap[o - start];
          }
        }
      for (int64_t o = start; o < stop; ++o) y[o] = static_cast<T>(best[o - start]);
      if (index == nullptr) continue;
      for (int64_t o = start; o < stop; ++o) index[o] = static_cast<Index>(best_tap[o - start]);
    }
  }

  /// Window by window: loops over taps that run along short rows cost more than their elements.
  template <class Index>
  static void max_forward_short(const Pool& pool, const T* x, int64_t row, T* y, Index* index) {
    const PoolAxis& axis = pool.w;
    const PoolRange rows = pool.h.inputs[row];
    const int64_t first_row = tap_of(pool.h, rows.begin, row) * axis.kernel;
    for (int64_t o = 0; o < axis.out; ++o) {
      const PoolRange columns = axis.inputs[o];
      int64_t first_tap = first_row + tap_of(axis, columns.begin, o), best_tap = first_tap;
      W best = -std::numeric_limits<W>::infinity();
      for (int64_t h = rows.begin; h < rows.end; h += pool.h.dilation, first_tap += axis.kernel) {
        int64_t tap = first_tap;
        for (int64_t w = columns.begin; w < columns.end; w += axis.dilation, ++tap) {
          const W value = static_cast<W>(x[h * axis.in + w]);
          const bool larger = (value > best) | (value != value);
          best = larger ? value : best;
          best_tap = larger ? tap : best_tap;
        }
      }
      y[o] = static_cast<T>(best);
      if (index != nullptr) index[o] = static_cast<Index>(best_tap);
    }
  }

  template <class Index>
  static void max_forward(const Pool& pool, const T* x, int64_t row, T* y, Index* index) {
    if (pool.w.out < kShort) max_forward_short(pool, x, row, y, index);
    else if (pool.w.stride == 1) max_forward_strided<1>(pool, x, row, y, index);
    else if (pool.w.stride == 2) max_forward_strided<2>(pool, x, row, y, index);
    else max_forward_strided<0>(pool, x, row, y, index);
  }

  template <class Index>
  static void max_backward(const Pool& pool, const T* dy, const Index* index, int64_t row, T* dx) {
    const PoolAxis& axis = pool.w;
    const PoolRange rows = pool.h.outputs[row];
    for (int64_t start = 0; start < axis.in; start += kStretch) {
      const int64_t stop = std::min(axis.in, start + kStretch);
      const int64_t begin = axis.outputs[start].begin, end = axis.outputs[stop - 1].end;
      // Whether a winner is in this row is a toss-up, so no branch: what is elsewhere goes to the
      // first sums, in turn, since an addition to one waits for the last.
      constexpr int64_t kElsewhere = 8;
      W all_sums[kElsewhere + kStretch];
      W* const sum = all_sums + kElsewhere;
      std::fill_n(all_sums, kElsewhere + stop - start, W(0));
      for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
        const int64_t th = tap_of(pool.h, row, oh);
        if (th < 0) continue;
        const T* from = dy + oh * axis.out;
        const Index* winner = index + oh * axis.out;
        for (int64_t o = end - 1; o >= begin; --o) {
          const int64_t tap = static_cast<int64_t>(winner[o]) - th * axis.kernel;
          const int64_t at = o * axis.stride - axis.padding + tap * axis.dilation - start;
          const bool here = (tap >= 0) & (tap < axis.kernel) & (at >= 0) & (at < stop - start);
          sum[here ? at : -1 - (o & (kElsewhere - 1))] += static_cast<W>(from[o]);
        }
      }
      for (int64_t i = start; i < stop; ++i) dx[i] = static_cast<T>(sum[i - start]);
    }
  }

  /// An output's gradient goes where its index says.
  static void max_backward_plane(const Pool& pool, const void* dy, const uint8_t* index, void* dx) {
    const PoolAxis &h = pool.h, &w = pool.w;
    int64_t distance[256];  // of taps from the first, as a window may have
    for (int64_t tap = 0; tap < h.kernel * w.kernel; ++tap)
      distance[tap] = tap / w.kernel * h.dilation * w.in + tap % w.kernel * w.dilation;
    W sums[kSmallPlane];
    std::fill_n(sums, h.in * w.in, W(0));
    const T* from = static_cast<const T*>(dy);
    for (int64_t oh = 0; oh < h.out; ++oh, from += w.out, index += w.out) {
      const int64_t first = (oh * h.stride - h.padding) * w.in - w.padding;
      for (int64_t ow = 0; ow < w.out; ++ow)
        sums[first + ow * w.stride + distance[index[ow]]] += static_cast<W>(from[ow]);
    }
    T* to = static_cast<T*>(dx);
    for (int64_t i = 0; i < h.in * w.in; ++i) to[i] = static_cast<T>(sums[i]);
  }

  static W divisor(const Pool& pool, int64_t oh, int64_t ow) {
    return static_cast<W>(pool.h.divisor[oh] * pool.w.divisor[ow]);
  }

  /// Of x[0..n), by vectors, in blocks that bound the error: at most as many roundings an element
  /// as when it is summed row by row.
  static W sum_of(const T* x, int64_t n) {
    constexpr int64_t kBlock = 512, kSums = 16;
    W total = 0;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t end = std::min(n, begin + kBlock);
      W sums[kSums] = {};
      int64_t i = begin;
      for (; i + kSums <= end; i += kSums)
        for (int64_t k = 0; k < kSums; ++k) sums[k] += static_cast<W>(x[i + k]);
      for (int64_t k = 0; i < end; ++i, ++k) sums[k] += static_cast<W>(x[i]);
      for (int64_t half = kSums / 2; half > 0; half /= 2)
        for (int64_t k = 0; k < half; ++k) sums[k] += sums[k + half];
      total += sums[0];
    }
    return total;
  }

  /// A window is summed row by row, then over rows: the error grows with h + w, not with h·w.
  static void avg_forward(const Pool& pool, const T* x, int64_t row, PoolRange, T* y) {
    const PoolRange rows = pool.h.inputs[row];
    for (int64_t ow = 0; ow < pool.w.out; ++ow) {
      const PoolRange columns = pool.w.inputs[ow];
      W sum = 0;
      if (columns.end - columns.begin == pool.w.in) {  // whole rows are one run
        sum = sum_of(x + rows.begin * pool.w.in, (rows.end - rows.begin) * pool.w.in);
        y[ow] = static_cast<T>(sum / divisor(pool, row, ow));
        continue;
      }
      for (int64_t h = rows.begin; h < rows.end; ++h) {
        W row_sum = 0;
        for (int64_t w = columns.begin; w < columns.end; ++w)
          row_sum += static_cast<W>(x[h * pool.w.in + w]);
        sum += row_sum;
      }
      y[ow] = static_cast<T>(sum / divisor(pool, row, ow));
    }
  }

  static void avg_backward(const Pool& pool, const T* dy, int64_t row, T* dx) {
    const PoolRange rows = pool.h.outputs[row];
    if (pool.h.out * pool.w.out == 1) {
      std::fill_n(dx, pool.w.in, static_cast<T>(static_cast<W>(dy[0]) / divisor(pool, 0, 0)));
      return;
    }
    const PoolAxis& axis = pool.w;
    for (int64_t start = 0; start < axis.in; start += kStretch) {
      const int64_t stop = std::min(axis.in, start + kStretch);
      W sum[kStretch];
      std::fill_n(sum, stop - start, W(0));
      for (int64_t ow = axis.outputs[start].begin; ow < axis.outputs[stop - 1].end; ++ow) {
        // Of all inputs of this column: divisions are as many as outputs, not as inputs.
        W share = 0;
        for (int64_t oh = rows.begin; oh < rows.end; ++oh)
          share += static_cast<W>(dy[oh * axis.out + ow]) / divisor(pool, oh, ow);
        const int64_t begin = std::max(start, axis.inputs[ow].begin);
        const int64_t end = std::min(stop, axis.inputs[ow].end);
        for (int64_t w = begin; w < end; ++w) sum[w - start] += share;
      }
      for (int64_t w = start; w < stop; ++w) dx[w] = static_cast<T>(sum[w - start]);
    }
  }
};

template <class T, class W>
constexpr PoolKernel record(const char* name, DType dtype) {
  PoolKernel record = PoolRecord<Planes<T, W>, T>::of(name, dtype, 1, 1);
  record.max_backward_plane = Planes<T, W>::max_backward_plane;
  return record;
}

constexpr PoolKernel kRecords[] = {
    record<float, float>(QUERN_NAMED("pool_f32_nchw"), DType::f32),
    record<bfloat16, float>(QUERN_NAMED("pool_bf16_nchw"), DType::bf16),
    record<double, double>(QUERN_NAMED("pool_f64_nchw"), DType::f64),
};

}  // namespace

QUERN_KERNELS(PoolKernel, pool, kRecords)

}  // namespace quern::kernels
