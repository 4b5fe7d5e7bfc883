// How the passes over a tensor [N, C, ...] that keep something a channel are cut: into blocks for
// the kernels, cells for the threads and partial sums, by its shape alone.
#pragma once
#include <algorithm>
#include <array>

#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

struct ChannelLayout {
  BatchNormSize size;
  bool nhwc;
  DType dtype;
  bool by_image = false;  // blocks of nhwc do not cross from one image into the next
};

/// What a block that is reduced has at most; columns <= kMaxColumns.
struct BlockLimits {
  int64_t elements, columns;
};
// 256 rows bound the length, and with it the error, of a sum in f32.
inline constexpr int64_t kMaxRows = 256, kMaxColumns = 2048;
inline constexpr int64_t kMaxGroups = 64;  // of chunks: partial results a channel

/// Cuts x into blocks of `rows` × `columns`. Chunk i is row range i%per_image of image i/per_image.
class Grid {
 public:
  /// Blocks of about `elements`, at most `max_columns` wide; for nhwc of at most `max_rows`.
  Grid(const ChannelLayout& x, int64_t elements, int64_t max_rows, int64_t max_columns)
      : size_(x.size), nhwc_(x.nhwc), itemsize_(itemsize(x.dtype)) {
    if (nhwc_) {
      if (!x.by_image) size_ = {1, size_.images * size_.pixels, size_.channels};
      columns_ = std::min(size_.channels, max_columns);
      rows_ = std::clamp<int64_t>(elements / columns_, 1, std::min(size_.pixels, max_rows));
    } else {
      rows_ = std::min(size_.pixels, elements);
      columns_ = std::clamp<int64_t>(elements / rows_, 1, std::min(size_.channels, max_columns));
    }
    per_image_ = ceil_div(size_.pixels, rows_);
    chunks = size_.images * per_image_;
    blocks = ceil_div(size_.channels, columns_);
  }

  int64_t channel(int64_t block) const { return block * columns_; }
  BatchNormBlock block(int64_t chunk, int64_t block) const {
    return {std::min(rows_, size_.pixels - row(chunk)),
            std::min(columns_, size_.channels - channel(block)),
            nhwc_ ? size_.channels : size_.pixels};
  }
  /// Where the block starts, in bytes.
  int64_t offset(int64_t chunk, int64_t block) const {
    const int64_t image = chunk / per_image_, c = channel(block);
    const int64_t elements = nhwc_ ? (image * size_.pixels + row(chunk)) * size_.channels + c
                                   : (image * size_.channels + c) * size_.pixels + row(chunk);
    return elements * itemsize_;
  }

  int64_t per_image() const { return per_image_; }

  int64_t chunks, blocks;

 private:
  int64_t row(int64_t chunk) const { return chunk % per_image_ * rows_; }

  BatchNormSize size_;
  bool nhwc_;
  int64_t itemsize_, rows_, columns_, per_image_;
};

/// Null stays null.
inline const std::byte* at(const void* p, int64_t bytes) {
  return p ? static_cast<const std::byte*>(p) + bytes : nullptr;
}
inline std::byte* at(void* p, int64_t bytes) {
  return p ? static_cast<std::byte*>(p) + bytes : nullptr;
}

/// What is kept a channel is f32, f64 for f64.
inline int64_t parameter_bytes(DType dtype) { return dtype == DType::f64 ? 8 : 4; }

/// Runs map(block, offset in bytes, first channel) on every block; they are independent.
template <class F>
void map_blocks(const ChannelLayout& x, F map) {
  constexpr int64_t kElements = 1 << 13;  // a thread's share is some cells: shares are alike
  const Grid grid(x, kElements, kElements, x.size.channels);
  parallel_for(grid.chunks * grid.blocks, [&](int64_t cell) {
    const int64_t chunk = cell / grid.blocks, block = cell % grid.blocks;
    map(grid.block(chunk, block), grid.offset(chunk, block), grid.channel(block));
  });
}

/// Arrays of f64 sums a channel, of which there are n.
template <size_t n>
using Sums = std::array<double*, n>;

template <size_t n>
Sums<n> operator+(Sums<n> sums, int64_t channels) {
  for (double*& sum : sums) sum += channels;
  return sums;
}

/// n sums a channel over all rows: reduce(block, offset, first channel, sums) makes those of a
/// block, and merge(total, rows so far, sums, rows, channels) takes them in. Groups of chunks are
/// cells.
template <size_t n, class Reduce, class Merge>
void reduce_blocks(const ChannelLayout& x, const BlockLimits& limits, Sums<n> result, Reduce reduce,
                   Merge merge) {
  const Grid grid(x, limits.elements, kMaxRows, limits.columns);
  const int64_t per_group = ceil_div(grid.chunks, kMaxGroups);
  const int64_t groups = ceil_div(grid.chunks, per_group), channels = x.size.channels;
  constexpr int64_t count = n;
  const Workspace partial(groups * count * channels * static_cast<int64_t>(sizeof(double)));
  const Workspace rows_of(groups * grid.blocks * static_cast<int64_t>(sizeof(int64_t)));
  const auto sums_of = [&](int64_t group) {
    Sums<n> sums;
    for (size_t k = 0; k < n; ++k)
      sums[k] = partial.as<double>() + (count * group + static_cast<int64_t>(k)) * channels;
    return sums;
  };

  parallel_for(groups * grid.blocks, [&](int64_t cell) {
    const int64_t group = cell / grid.blocks, block = cell % grid.blocks;
    const int64_t c = grid.channel(block), begin = group * per_group;
    const Sums<n> total = sums_of(group) + c;
    int64_t rows = 0;
    for (int64_t chunk = begin; chunk < std::min(grid.chunks, begin + per_group); ++chunk) {
      const BatchNormBlock part = grid.block(chunk, block);
      double local[n][kMaxColumns];
      Sums<n> sums = total;
      if (rows > 0)
        for (size_t k = 0; k < n; ++k) sums[k] = local[k];
      reduce(part, grid.offset(chunk, block), c, sums);
      if (rows > 0) merge(total, rows, sums, part.rows, part.channels);
      rows += part.rows;
    }
    rows_of.as<int64_t>()[cell] = rows;
  });

  parallel_for(grid.blocks, [&](int64_t block) {
    const int64_t c = grid.channel(block), columns = grid.block(0, block).channels;
    const Sums<n> total = result + c;
    int64_t rows = 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Sums<n> sums = sums_of(group) + c;
      const int64_t more = rows_of.as<int64_t>()[group * grid.blocks + block];
      if (group > 0) merge(total, rows, sums, more, columns);
      else
        for (size_t k = 0; k < n; ++k) std::copy_n(sums[k], columns, total[k]);
      rows += more;
    }
  });
}

/// merge of plain sums.
struct AddSums {
  template <size_t n>
  void operator()(const Sums<n>& a, int64_t, const Sums<n>& b, int64_t, int64_t columns) const {
    for (size_t k = 0; k < n; ++k)
      for (int64_t i = 0; i < columns; ++i) a[k][i] += b[k][i];
  }
};

}  // namespace quern::kernels
