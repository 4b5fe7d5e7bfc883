#include "quern/ops/kernels/conv/pack.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "quern/ops/kernels/conv/copy_kernel.h"
#include "quern/ops/kernels/gemm/bf16_terms.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

/// Calls f with the unsigned integer of `item` bytes.
template <class F>
void visit_item(int64_t item, F f) {
  if (item == 2) f(std::type_identity<uint16_t>{});
  else if (item == 4) f(std::type_identity<uint32_t>{});
  else f(std::type_identity<uint64_t>{});
}

/// Asked for row by row: chosen, and reported, once for each cap of the instruction set.
const CopyKernel& copy_kernel() {
  static std::array<std::atomic<const CopyKernel*>, 16> by_cap;
  auto& chosen = by_cap[static_cast<size_t>(isa_cap())];
  if (const CopyKernel* kernel = chosen.load(std::memory_order_relaxed)) return *kernel;
  const CopyKernel* kernel = select<CopyKernel>("copy", [](const auto&) { return true; });
  chosen.store(kernel, std::memory_order_relaxed);
  return *kernel;
}

template <class T>
Transpose* transpose_of(const CopyKernel& kernel) {
  if constexpr (sizeof(T) == 2) return kernel.transpose16;
  else if constexpr (sizeof(T) == 4) return kernel.transpose32;
  else return kernel.transpose64;
}

template <class T>
auto map_of(const CopyKernel& kernel) {
  if constexpr (sizeof(T) == 2) return kernel.map_bf16;
  else if constexpr (sizeof(T) == 4) return kernel.map_f32;
  else return kernel.map_f64;
}

/// A known count becomes a few vector moves instead of a call.
template <int64_t kCount, class T>
void copy_items(const T* __restrict src, T* __restrict dst) {
  for (int64_t i = 0; i < kCount; ++i) dst[i] = src[i];
}

template <class T>
void copy_matrix(const T* src, int64_t row_stride, int64_t col_stride, T* dst, int64_t dst_stride,
                 int64_t rows, int64_t cols) {
  if (col_stride == 1 && row_stride == cols && dst_stride == cols) {
    std::copy_n(src, rows * cols, dst);
  } else if (col_stride == 1 && cols == 32) {
    for (int64_t i = 0; i < rows; ++i) copy_items<32>(src + i * row_stride, dst + i * dst_stride);
  } else if (col_stride == 1) {
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(src + i * row_stride, cols, dst + i * dst_stride);
  } else if (row_stride == 1) {
    transpose_of<T>(copy_kernel())(src, col_stride, dst, dst_stride, rows, cols);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        dst[i * dst_stride + j] = src[i * row_stride + j * col_stride];
  }
}

/// Zeroes positions [begin, end) of all channels.
template <class T>
void zero_positions(const SourceCopy& copy, T* scratch, int64_t begin, int64_t end) {
  for (int term = 0; term < term_copies(copy.bf16_terms); ++term, scratch += copy.term_stride) {
    if (copy.channel_stride == 1) {
      for (int64_t p = begin; p < end; ++p)
        std::fill_n(scratch + p * copy.position_stride, copy.channels, T{});
    } else {
      for (int64_t c = 0; c < copy.channels; ++c)
        std::fill(scratch + c * copy.channel_stride + begin,
                  scratch + c * copy.channel_stride + end, T{});
    }
  }
}

/// With `column_step` between items of a row.
void round_matrix(TermCopy copy, int64_t column_step) {
  MapCopy& m = copy.matrix;
  if (!m.scale && column_step == 1 && m.src_stride == m.cols && m.dst_stride == m.cols)
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

/// A row of copy_block: positions × channels from src on.
template <class T, class To>
void copy_row(const SourceCopy& copy, int64_t position_step, const T* src, To* dst,
              int64_t positions) {
  const bool rows_are_channels = copy.channel_stride != 1;
  MapCopy map{.src = src,
              .src_stride = position_step,
              .dst = dst,
              .dst_stride = copy.position_stride,
              .rows = positions,
              .cols = copy.channels,
              .center = copy.map.center,
              .scale = copy.map.scale,
              .shift = copy.map.shift,
              .rows_are_channels = rows_are_channels};
  int64_t column_step = copy.strides.c;
  if (rows_are_channels) {
    map.dst_stride = copy.channel_stride;
    std::swap(map.rows, map.cols);
    std::swap(map.src_stride, column_step);
  }
  if constexpr (!std::is_same_v<T, To>) {
    round_matrix({map, copy.bf16_terms, copy.term_stride}, column_step);
  } else {
    if (!map.scale || column_step != 1) {  // mapped where it lies then, while it is in L1
      copy_matrix(src, map.src_stride, column_step, dst, map.dst_stride, map.rows, map.cols);
      map.src = dst;
      map.src_stride = map.dst_stride;
    }
    if (map.scale) map_of<T>(copy_kernel())(map);
  }
}

template <class T, class To>
void copy_block(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
                const T* src, To* scratch) {
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
        copy_row(copy, s.x * x.step, from, scratch + (row + left) * copy.position_stride,
                 right - left);
      }
    }
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
  if (copy.bf16_terms != 0)
    return copy_block(copy, y, x, block, static_cast<const float*>(src),
                      static_cast<bfloat16*>(scratch));
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
    if (kr == 1) return copy_matrix(from, row_stride, col_stride, at(0), nr, k, n);
    int64_t i = 0;
    const CopyKernel& copy = copy_kernel();
    const auto row = [&](int64_t i) { return from + i * row_stride; };
    if (sizeof(T) == 2 && col_stride == 1 && kr == 2 && row0 % 2 == 0) {
      for (; i + 1 < k; i += 2) copy.interleave16(row(i), row(i + 1), n, at(i));
    } else if (sizeof(T) == 2 && col_stride == 1 && kr == 4 && row0 % 4 == 0) {
      T even[2 * kMaxNr], odd[2 * kMaxNr];
      for (; i + 3 < k; i += 4) {
        copy.interleave16(row(i), row(i + 2), n, even);
        copy.interleave16(row(i + 1), row(i + 3), n, odd);
        copy.interleave16(even, odd, 2 * n, at(i));
      }
    }
    for (; i < k; ++i)
      for (int64_t j = 0; j < n; ++j) at(i)[j * kr] = from[i * row_stride + j * col_stride];
  });
}

bool packs_panels(const GemmKernel& kernel) {
  return (kernel.b == DType::f32 && kernel.kr == 1) || (kernel.b == DType::bf16 && kernel.kr == 2);
}

void pack_panels(const GemmKernel& kernel, const PanelCopy& copy) {
  (kernel.kr == 1 ? copy_kernel().panels32 : copy_kernel().pair_panels16)(copy);
}

void round_panels(const PanelCopy& copy) { copy_kernel().round_pair_panels(copy); }

void round_matrix(const float* src, int64_t row_stride, int64_t col_stride, bfloat16* dst,
                  int64_t dst_stride, int64_t rows, int64_t cols, int terms, int64_t term_stride) {
  round_matrix({{.src = src,
                 .src_stride = row_stride,
                 .dst = dst,
                 .dst_stride = dst_stride,
                 .rows = rows,
                 .cols = cols,
                 .center = nullptr,
                 .scale = nullptr,
                 .shift = nullptr,
                 .rows_are_channels = false},
                terms,
                term_stride},
               col_stride);
}

}  // namespace quern::kernels
