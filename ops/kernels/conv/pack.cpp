#include "quern/ops/kernels/conv/pack.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <xsimd/xsimd.hpp>

#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

/// Calls f with the unsigned integer of `item` bytes.
template <class F>
void visit_item(int64_t item, F f) {
  if (item == 2) f(std::type_identity<uint16_t>{});
  else if (item == 4) f(std::type_identity<uint32_t>{});
  else f(std::type_identity<uint64_t>{});
}

/// dst[j][i] = src[i][j], a square of one SIMD register's items a side: rows i and i + half are
/// interleaved log2(side) times.
template <class T>
void transpose_square(const T* src, int64_t src_stride, T* dst, int64_t dst_stride) {
  using Batch = xsimd::batch<T>;
  constexpr size_t side = Batch::size;
  Batch rows[side], mixed[side];
  for (size_t i = 0; i < side; ++i)
    rows[i] = Batch::load_unaligned(src + static_cast<int64_t>(i) * src_stride);
  for (size_t stage = 1; stage < side; stage *= 2) {
    for (size_t i = 0; i < side / 2; ++i) {
      mixed[2 * i] = xsimd::zip_lo(rows[i], rows[i + side / 2]);
      mixed[2 * i + 1] = xsimd::zip_hi(rows[i], rows[i + side / 2]);
    }
    std::copy(mixed, mixed + side, rows);
  }
  for (size_t i = 0; i < side; ++i)
    rows[i].store_unaligned(dst + static_cast<int64_t>(i) * dst_stride);
}

/// dst[i][j] = src[j][i], dst rows × cols. A strip of columns fills whole cache lines of dst.
template <class T>
void transpose(const T* src, int64_t src_stride, T* dst, int64_t dst_stride, int64_t rows,
               int64_t cols) {
  constexpr int64_t side = xsimd::batch<T>::size, strip = 64 / sizeof(T);
  const int64_t whole_rows = rows / side * side, whole_cols = cols / side * side;
  for (int64_t begin = 0; begin < whole_cols; begin += strip)
    for (int64_t i = 0; i < whole_rows; i += side)
      for (int64_t j = begin; j < std::min(begin + strip, whole_cols); j += side)
        transpose_square(src + j * src_stride + i, src_stride, dst + i * dst_stride + j,
                         dst_stride);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; ++j)
      dst[i * dst_stride + j] = src[j * src_stride + i];
}

template <class T>
void copy_matrix(const T* src, int64_t row_stride, int64_t col_stride, T* dst, int64_t dst_stride,
                 int64_t rows, int64_t cols) {
  if (col_stride == 1 && row_stride == cols && dst_stride == cols) {
    std::copy_n(src, rows * cols, dst);
  } else if (col_stride == 1) {
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(src + i * row_stride, cols, dst + i * dst_stride);
  } else if (row_stride == 1) {
    transpose(src, col_stride, dst, dst_stride, rows, cols);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        dst[i * dst_stride + j] = src[i * row_stride + j * col_stride];
  }
}

/// Zeroes positions [begin, end) of all channels.
template <class T>
void zero_positions(const SourceCopy& copy, T* scratch, int64_t begin, int64_t end) {
  if (copy.channel_stride == 1) {
    for (int64_t p = begin; p < end; ++p)
      std::fill_n(scratch + p * copy.position_stride, copy.channels, T{});
  } else {
    for (int64_t c = 0; c < copy.channels; ++c)
      std::fill(scratch + c * copy.channel_stride + begin, scratch + c * copy.channel_stride + end,
                T{});
  }
}

template <class T>
void copy_block(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
                const T* src, T* scratch) {
  const Scratch layout(y, x, block.rows);
  const ImageStrides& s = copy.strides;
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t plane = 0; plane < layout.planes_y * layout.planes_x; ++plane) {
      const int64_t plane_y = plane / layout.planes_x, plane_x = plane % layout.planes_x;
      const auto [top, bottom] = y.inside(plane_y, block.row, layout.height);
      const auto [left, right] = x.inside(plane_x, 0, layout.width);
      const int64_t start = n * layout.image() + plane * layout.plane();
      zero_positions(copy, scratch, start, start + top * layout.width);
      zero_positions(copy, scratch, start + bottom * layout.width, start + layout.plane());
      for (int64_t i = top; i < bottom; ++i) {
        const int64_t row = start + i * layout.width;
        zero_positions(copy, scratch, row, row + left);
        zero_positions(copy, scratch, row + right, row + layout.width);
        if (left == right) continue;
        const T* from = src + (block.image + n) * s.n + y.source_at(plane_y, block.row, i) * s.y +
                        x.source_at(plane_x, 0, left) * s.x;
        if (copy.channel_stride == 1)
          copy_matrix(from, s.x * x.step, s.c, scratch + (row + left) * copy.position_stride,
                      copy.position_stride, right - left, copy.channels);
        else
          copy_matrix(from, s.c, s.x * x.step, scratch + row + left, copy.channel_stride,
                      copy.channels, right - left);
      }
    }
  }
}

/// A known count becomes a few vector moves instead of a call.
template <int64_t kCount, class T>
void copy_items(const T* __restrict src, T* __restrict dst) {
  for (int64_t i = 0; i < kCount; ++i) dst[i] = src[i];
}

/// dst = a[0], b[0], a[1], b[1], ...
template <class T>
void interleave(const T* __restrict a, const T* __restrict b, int64_t n, T* __restrict dst) {
  for (int64_t i = 0; i < n; ++i) {
    dst[2 * i] = a[i];
    dst[2 * i + 1] = b[i];
  }
}

}  // namespace

void copy_matrix(int64_t item, const void* src, int64_t row_stride, int64_t col_stride, void* dst,
                 int64_t dst_stride, int64_t rows, int64_t cols) {
  visit_item(item, [&]<class T>(std::type_identity<T>) {
    copy_matrix(static_cast<const T*>(src), row_stride, col_stride, static_cast<T*>(dst),
                dst_stride, rows, cols);
  });
}

void copy_block(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
                const void* src, void* scratch) {
  visit_item(copy.item, [&]<class T>(std::type_identity<T>) {
    copy_block(copy, y, x, block, static_cast<const T*>(src), static_cast<T*>(scratch));
  });
}

void pack_panel_rows(const GemmKernel& kernel, const void* src, int64_t row_stride,
                     int64_t col_stride, int64_t k, int64_t n, int64_t row0, void* panel) {
  visit_item(itemsize(kernel.b), [&]<class T>(std::type_identity<T>) {
    const T* from = static_cast<const T*>(src);
    const int64_t nr = kernel.nr, kr = kernel.kr;
    const auto at = [&](int64_t i) {
      const int64_t p = row0 + i;
      return static_cast<T*>(panel) + p / kr * nr * kr + p % kr;
    };
    int64_t i = 0;
    if (col_stride == 1 && kr == 1 && n == 32) {
      for (; i < k; ++i) copy_items<32>(from + i * row_stride, at(i));
    } else if (col_stride == 1 && kr == 2 && row0 % 2 == 0) {
      for (; i + 1 < k; i += 2)
        interleave(from + i * row_stride, from + (i + 1) * row_stride, n, at(i));
    }
    for (; i < k; ++i)
      for (int64_t j = 0; j < n; ++j) at(i)[j * kr] = from[i * row_stride + j * col_stride];
  });
}

}  // namespace quern::kernels
