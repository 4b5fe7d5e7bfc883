#include "quern/ops/kernels/conv/blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "quern/ops/kernels/blocking.h"
#include "quern/ops/kernels/pack/matrix.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

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

/// Positions × channels of a row, `positions` neighbours of a plane from src on.
template <class T, class To>
void copy_row(const SourceCopy& copy, const T* src, int64_t position_step, int64_t channel_step,
              To* dst, int64_t positions) {
  const bool rows_are_channels = copy.channel_stride != 1;
  MapCopy matrix{.src = src,
                 .src_stride = position_step,
                 .dst = dst,
                 .dst_stride = copy.position_stride,
                 .rows = positions,
                 .cols = copy.channels,
                 .map = copy.map,
                 .rows_are_channels = rows_are_channels};
  if (rows_are_channels) {
    matrix.dst_stride = copy.channel_stride;
    std::swap(matrix.rows, matrix.cols);
    std::swap(matrix.src_stride, channel_step);
  }
  if constexpr (!std::is_same_v<T, To>) {
    round_matrix({matrix, copy.bf16_terms, copy.term_stride}, channel_step);
  } else {
    if (!matrix.map.scale || channel_step != 1) {  // mapped where it lies then, while it is in L1
      copy_matrix(sizeof(T), src, matrix.src_stride, channel_step, dst, matrix.dst_stride,
                  matrix.rows, matrix.cols);
      matrix.src = dst;
      matrix.src_stride = matrix.dst_stride;
    }
    if (matrix.map.scale) map_matrix<T>(matrix);
  }
}

/// The rows of a block that scratch has in one plane of y, to all planes of x.
template <class T, class To>
class RowsCopy {
 public:
  /// src, scratch: of their image.
  RowsCopy(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
           const Scratch& layout, int64_t plane_y, const T* src, To* scratch)
      : copy_(copy),
        y_(y),
        x_(x),
        first_row_(block.row),
        layout_(layout),
        plane_y_(plane_y),
        rows_(y.inside(plane_y, block.row, layout.height)),
        src_(src),
        scratch_(scratch) {}

  void copy() const {
    for (int64_t plane = 0; plane < layout_.planes_x; ++plane) zero_above_and_below(plane);
    // Of planes, every step-th pixel would be picked one by one: rows are transposed as they lie,
    // once for all planes of x, and pixels picked then.
    if (copy_.strides.c != 1 && copy_.channel_stride == 1 && x_.step > 1) return copy_transposed();
    for (int64_t plane = 0; plane < layout_.planes_x; ++plane) {
      // Rows that follow each other without a gap, in the source and in scratch, are one.
      const Axis::Range pixels = pixels_of(plane);
      const bool joined = pixels == Axis::Range{0, layout_.width} && y_.step == 1 &&
                          copy_.strides.y == layout_.width * copy_.strides.x * x_.step;
      const int64_t rows = joined ? rows_.end - rows_.begin : 1;
      for (int64_t i = rows_.begin; i < rows_.end; i += rows)
        copy_rows(plane, pixels, i, rows, source_row(i), 0, copy_.strides.x, copy_.strides.c);
    }
  }

 private:
  int64_t position(int64_t plane_x, int64_t row) const {
    return (plane_y_ * layout_.planes_x + plane_x) * layout_.plane() + row * layout_.width;
  }
  const T* source_row(int64_t i) const {
    return src_ + y_.source_at(plane_y_, first_row_, i) * copy_.strides.y;
  }

  void zero_above_and_below(int64_t plane) const {
    if (copy_.padding_rows) {
      zero_positions(copy_, scratch_, position(plane, 0), position(plane, rows_.begin));
      zero_positions(copy_, scratch_, position(plane, rows_.end), position(plane, layout_.height));
    }
  }

  /// Of a plane of x, those that are no padding.
  Axis::Range pixels_of(int64_t plane) const { return x_.inside(plane, 0, layout_.width); }

  /// Rows of a plane of x, which are one, and the padding around them. Pixel `first` of the source
  /// lies at src.
  void copy_rows(int64_t plane, Axis::Range pixels, int64_t i, int64_t rows, const T* src,
                 int64_t first, int64_t pixel_step, int64_t channel_step) const {
    const auto [left, right] = pixels;
    const int64_t at = position(plane, i), end = at + rows * layout_.width;
    if (i == rows_.begin) zero_positions(copy_, scratch_, at, at + left);
    // Together with the beginning of the next row.
    zero_positions(copy_, scratch_, end - layout_.width + right,
                   end + (i + rows < rows_.end ? left : 0));
    if (left == right) return;
    copy_row(copy_, src + (x_.source_at(plane, 0, left) - first) * pixel_step, pixel_step * x_.step,
             channel_step, scratch_ + (at + left) * copy_.position_stride,
             (rows - 1) * layout_.width + right - left);
  }

  void copy_transposed() const {
    int64_t first = x_.source, end = 0;  // of the pixels that planes have
    for (int64_t plane = 0; plane < layout_.planes_x; ++plane) {
      const auto [left, right] = pixels_of(plane);
      if (left == right) continue;
      first = std::min(first, x_.source_at(plane, 0, left));
      end = std::max(end, x_.source_at(plane, 0, right - 1) + 1);
    }
    if (first > end) first = end;
    const int64_t channels = copy_.channels;
    const Workspace row((end - first) * channels * static_cast<int64_t>(sizeof(T)));
    for (int64_t i = rows_.begin; i < rows_.end; ++i) {
      copy_matrix(sizeof(T), source_row(i) + first * copy_.strides.x, copy_.strides.x,
                  copy_.strides.c, row.as<T>(), channels, end - first, channels);
      for (int64_t plane = 0; plane < layout_.planes_x; ++plane)
        copy_rows(plane, pixels_of(plane), i, 1, row.as<T>(), first, channels, 1);
    }
  }

  const SourceCopy& copy_;
  const Axis &y_, &x_;
  const int64_t first_row_;
  const Scratch& layout_;
  const int64_t plane_y_;
  const Axis::Range rows_;  // that are no padding
  const T* src_;
  To* scratch_;
};

template <class T, class To>
void copy_block(const SourceCopy& copy, const Axis& y, const Axis& x, const Block& block,
                const T* src, To* scratch) {
  const Scratch layout(y, x, block.rows, copy.width);
  for (int64_t n = 0; n < block.images; ++n)
    for (int64_t plane_y = 0; plane_y < layout.planes_y; ++plane_y)
      RowsCopy<T, To>(copy, y, x, block, layout, plane_y, src + (block.image + n) * copy.strides.n,
                      scratch + n * layout.image() * copy.position_stride)
          .copy();
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

void Prefetch::add(const void* tensor, int64_t item, const ImageStrides& strides,
                   const Extent& channels, const Block& block) {
  if (block.rows <= 0 || channels.size <= 0) return;
  const auto* first =
      static_cast<const std::byte*>(tensor) +
      (block.image * strides.n + block.row * strides.y + channels.begin * strides.c) * item;
  if (strides.c == 1)
    return add(first, channels.size * item, strides.x * item,
               ((block.images - 1) * strides.n + block.rows * strides.y) / strides.x);
  const bool whole = block.rows * strides.y == strides.c && channels.size * strides.c == strides.n;
  add(first, block.rows * strides.y * item, strides.c * item,
      (whole ? block.images : 1) * channels.size);
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
