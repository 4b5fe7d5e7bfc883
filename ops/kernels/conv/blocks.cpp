#include "quern/ops/kernels/conv/blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/pack/matrix.h"

namespace quern::kernels {
namespace {

template <class T>
auto map_of(const CopyKernel& kernel) {
  if constexpr (sizeof(T) == 2) return kernel.map_bf16;
  else if constexpr (sizeof(T) == 4) return kernel.map_f32;
  else return kernel.map_f64;
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

/// A row of copy_block: positions × channels from src on.
template <class T, class To>
void copy_row(const SourceCopy& copy, int64_t position_step, const T* src, To* dst,
              int64_t positions) {
  const bool rows_are_channels = copy.channel_stride != 1;
  MapCopy matrix{.src = src,
                 .src_stride = position_step,
                 .dst = dst,
                 .dst_stride = copy.position_stride,
                 .rows = positions,
                 .cols = copy.channels,
                 .map = copy.map,
                 .rows_are_channels = rows_are_channels};
  int64_t column_step = copy.strides.c;
  if (rows_are_channels) {
    matrix.dst_stride = copy.channel_stride;
    std::swap(matrix.rows, matrix.cols);
    std::swap(matrix.src_stride, column_step);
  }
  if constexpr (!std::is_same_v<T, To>) {
    round_matrix({matrix, copy.bf16_terms, copy.term_stride}, column_step);
  } else {
    if (!matrix.map.scale || column_step != 1) {  // mapped where it lies then, while it is in L1
      copy_matrix(sizeof(T), src, matrix.src_stride, column_step, dst, matrix.dst_stride,
                  matrix.rows, matrix.cols);
      matrix.src = dst;
      matrix.src_stride = matrix.dst_stride;
    }
    if (matrix.map.scale) map_of<T>(copy_kernel())(matrix);
  }
}

template <class T, class To>
void copy_block(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
                const T* src, To* scratch) {
  const Scratch layout(y, x, block.rows, copy.width);
  const ImageStrides& s = copy.strides;
  for (int64_t n = 0; n < block.images; ++n) {
    for (int64_t plane = 0; plane < layout.planes_y * layout.planes_x; ++plane) {
      const int64_t plane_y = plane / layout.planes_x, plane_x = plane % layout.planes_x;
      const auto [top, bottom] = y.inside(plane_y, block.row, layout.height);
      const auto [left, right] = x.inside(plane_x, 0, layout.width);
      const int64_t start = n * layout.image() + plane * layout.plane();
      if (copy.padding_rows) {
        zero_positions(copy, scratch, start, start + top * layout.width);
        zero_positions(copy, scratch, start + bottom * layout.width, start + layout.plane());
      }
      // Rows that follow each other without a gap, in the source and in scratch, are one.
      const bool joined =
          left == 0 && right == layout.width && y.step == 1 && s.y == layout.width * s.x * x.step;
      if (top < bottom)
        zero_positions(copy, scratch, start + top * layout.width,
                       start + top * layout.width + left);
      for (int64_t i = top; i < bottom; i += joined ? bottom - top : 1) {
        const int64_t row = start + i * layout.width;
        // Together with the beginning of the next row.
        zero_positions(copy, scratch, row + right,
                       row + layout.width + (i + 1 < bottom ? left : 0));
        if (left == right) continue;
        const T* from = src + (block.image + n) * s.n + y.source_at(plane_y, block.row, i) * s.y +
                        x.source_at(plane_x, 0, left) * s.x;
        copy_row(copy, s.x * x.step, from, scratch + (row + left) * copy.position_stride,
                 joined ? (bottom - top) * layout.width : right - left);
      }
    }
  }
}

}  // namespace

Block BlockGrid::operator[](int64_t i) const {
  const int64_t image = i / row_blocks() * block_images, row = i % row_blocks() * block_rows;
  return {.image = image,
          .images = std::min(block_images, images - image),
          .row = row,
          .rows = std::min(block_rows, rows - row)};
}

bool rows_collide(const GemmKernel& gemm, int64_t stride) {
  const int64_t sets = cache::kWay / std::gcd(cache::kWay, stride * itemsize(gemm.a));
  return gemm.mr > cache::kWays * sets;
}

int64_t without_collisions(const GemmKernel& gemm, int64_t items) {
  const int64_t line = 64 / itemsize(gemm.a);
  while (rows_collide(gemm, items)) items += line;
  return items;
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

}  // namespace quern::kernels
