#include "quern/ops/kernels/pack/matrix.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/convert.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

template <class T>
Transpose* transpose_of(const CopyKernel& kernel) {
  if constexpr (sizeof(T) == 2) return kernel.transpose16;
  else if constexpr (sizeof(T) == 4) return kernel.transpose32;
  else return kernel.transpose64;
}

/// Do rows of dst begin in one set of the first-level cache, and are as many as it has lines or
/// more, and longer than a line?
bool meet_in_a_set(int64_t bytes_apart, int64_t rows, int64_t bytes) {
  return bytes_apart % cache::kWay == 0 && rows >= cache::kWays && bytes > cache::kLine;
}

/// A transpose to such rows: of some, 512 bytes each go through scratch, so that lines of a row are
/// written one after the other. Squares would write one line of each row in turn.
template <class T>
void transpose_apart(const T* src, int64_t col_stride, T* dst, int64_t dst_stride, int64_t rows,
                     int64_t cols) {
  constexpr int64_t item = sizeof(T), some = 16, part = 512 / item, pitch = part + 64 / item;
  alignas(64) T scratch[some * pitch];
  for (int64_t j = 0; j < cols; j += part)
    for (int64_t i = 0; i < rows; i += some) {
      const int64_t m = std::min(some, rows - i), n = std::min(part, cols - j);
      transpose_of<T>(copy_kernel())(src + i + j * col_stride, col_stride, scratch, pitch, m, n);
      detail::copy_rows(reinterpret_cast<std::byte*>(dst + i * dst_stride + j), dst_stride * item,
                        reinterpret_cast<const std::byte*>(scratch), pitch * item, m, n * item);
    }
}

template <class T>
void copy_matrix(const T* src, int64_t row_stride, int64_t col_stride, T* dst, int64_t dst_stride,
                 int64_t rows, int64_t cols) {
  constexpr int64_t item = sizeof(T);
  if (col_stride == 1 && row_stride == cols && dst_stride == cols) {
    std::copy_n(src, rows * cols, dst);
  } else if (col_stride == 1) {
    detail::copy_rows(reinterpret_cast<std::byte*>(dst), dst_stride * item,
                      reinterpret_cast<const std::byte*>(src), row_stride * item, rows,
                      cols * item);
  } else if (row_stride == 1 && meet_in_a_set(dst_stride * item, rows, cols * item)) {
    transpose_apart(src, col_stride, dst, dst_stride, rows, cols);
  } else if (row_stride == 1) {
    transpose_of<T>(copy_kernel())(src, col_stride, dst, dst_stride, rows, cols);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        dst[i * dst_stride + j] = src[i * row_stride + j * col_stride];
  }
}

}  // namespace

/// Asked for row by row: chosen, and reported, once for each cap of the instruction set.
const CopyKernel& copy_kernel() {
  static std::array<std::atomic<const CopyKernel*>, 16> by_cap;
  auto& chosen = by_cap[static_cast<size_t>(isa_cap())];
  if (const CopyKernel* kernel = chosen.load(std::memory_order_relaxed)) return *kernel;
  const CopyKernel* kernel = select<CopyKernel>("copy", [](const auto&) { return true; });
  chosen.store(kernel, std::memory_order_relaxed);
  return *kernel;
}

void copy_matrix(int64_t item, const void* src, int64_t row_stride, int64_t col_stride, void* dst,
                 int64_t dst_stride, int64_t rows, int64_t cols) {
  visit_item(item, [&]<class T>(std::type_identity<T>) {
    copy_matrix(static_cast<const T*>(src), row_stride, col_stride, static_cast<T*>(dst),
                dst_stride, rows, cols);
  });
}

void round_matrix(TermCopy copy, int64_t column_step) {
  MapCopy& m = copy.matrix;
  if (!m.map.scale && column_step == 1 && m.src_stride == m.cols && m.dst_stride == m.cols)
    m.cols *= std::exchange(m.rows, 1);
  const Workspace dense(column_step == 1 ? 0 : m.rows * m.cols * 4);
  if (column_step != 1) {
    copy_matrix(static_cast<const float*>(m.src), m.src_stride, column_step, dense.as<float>(),
                m.cols, m.rows, m.cols);
    m.src = dense.as<float>();
    m.src_stride = m.cols;
  }
  copy_kernel().round(copy);
}

void round_matrix(const float* src, int64_t row_stride, int64_t col_stride, bfloat16* dst,
                  int64_t dst_stride, int64_t rows, int64_t cols, int terms, int64_t term_stride) {
  round_matrix({{
                    .src = src,
                    .src_stride = row_stride,
                    .dst = dst,
                    .dst_stride = dst_stride,
                    .rows = rows,
                    .cols = cols,
                },
                terms,
                term_stride},
               col_stride);
}

}  // namespace quern::kernels
