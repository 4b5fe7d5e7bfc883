#include "quern/ops/kernels/norm/batch_norm.h"

#include <algorithm>

#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {
namespace {

// Of a block that is reduced. 256 rows bound the length, and with it the error, of a sum in f32.
constexpr int64_t kMaxRows = 256, kMaxColumns = 256;
constexpr int64_t kMaxGroups = 64;  // of chunks: partial results a channel

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Cuts x into blocks of `rows` × `columns`. Chunk i is row range i%per_image of image i/per_image.
class Grid {
 public:
  /// Blocks of about `elements`, at most `max_columns` wide; for nhwc of at most `max_rows`.
  Grid(const BatchNormKernel& kernel, BatchNormSize size, int64_t elements, int64_t max_rows,
       int64_t max_columns)
      : size_(size), nhwc_(kernel.nhwc), itemsize_(itemsize(kernel.dtype)) {
    if (nhwc_) {
      size_ = {1, size.images * size.pixels, size.channels};
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
    const int64_t elements = nhwc_ ? row(chunk) * size_.channels + c
                                   : (image * size_.channels + c) * size_.pixels + row(chunk);
    return elements * itemsize_;
  }

  int64_t chunks, blocks;

 private:
  int64_t row(int64_t chunk) const { return chunk % per_image_ * rows_; }

  BatchNormSize size_;
  bool nhwc_;
  int64_t itemsize_, rows_, columns_, per_image_;
};

const std::byte* at(const void* p, int64_t bytes) {
  return static_cast<const std::byte*>(p) + bytes;
}
std::byte* at(void* p, int64_t bytes) { return static_cast<std::byte*>(p) + bytes; }

int64_t parameter_bytes(const BatchNormKernel& kernel) {
  return kernel.dtype == DType::f64 ? 8 : 4;
}

/// Runs map(block, offset in bytes, first channel) on every block; they are independent.
template <class F>
void map_blocks(const BatchNormKernel& kernel, const BatchNormSize& size, F map) {
  constexpr int64_t kElements = 1 << 15;  // enough to make up for waking a thread
  const Grid grid(kernel, size, kElements, kElements, size.channels);
  parallel_for(grid.chunks * grid.blocks, [&](int64_t cell) {
    const int64_t chunk = cell / grid.blocks, block = cell % grid.blocks;
    map(grid.block(chunk, block), grid.offset(chunk, block), grid.channel(block));
  });
}

/// A pair of f64 sums a channel over all rows: reduce(block, offset, first channel, out) makes
/// those of a block, and merge(total, rows so far, sums, rows) takes them in. Groups of chunks are
/// cells; a block is about 32 KiB, for kernels that read it twice.
template <class Reduce, class Merge>
void reduce_blocks(const BatchNormKernel& kernel, const BatchNormSize& size, double* first,
                   double* second, Reduce reduce, Merge merge) {
  const Grid grid(kernel, size, (32 << 10) / itemsize(kernel.dtype), kMaxRows, kMaxColumns);
  const int64_t per_group = ceil_div(grid.chunks, kMaxGroups);
  const int64_t groups = ceil_div(grid.chunks, per_group), channels = size.channels;
  const Workspace partial(groups * 2 * channels * static_cast<int64_t>(sizeof(double)));
  const Workspace counts(groups * grid.blocks * static_cast<int64_t>(sizeof(int64_t)));

  parallel_for(groups * grid.blocks, [&](int64_t cell) {
    const int64_t group = cell / grid.blocks, block = cell % grid.blocks;
    const int64_t c = grid.channel(block), begin = group * per_group;
    double* total[2] = {partial.as<double>() + (2 * group) * channels + c,
                        partial.as<double>() + (2 * group + 1) * channels + c};
    int64_t rows = 0;
    for (int64_t chunk = begin; chunk < std::min(grid.chunks, begin + per_group); ++chunk) {
      const BatchNormBlock part = grid.block(chunk, block);
      double sums[2][kMaxColumns];
      double* out[2] = {rows == 0 ? total[0] : sums[0], rows == 0 ? total[1] : sums[1]};
      reduce(part, grid.offset(chunk, block), c, out);
      if (rows > 0) merge(total, rows, out, part.rows, part.channels);
      rows += part.rows;
    }
    counts.as<int64_t>()[cell] = rows;
  });

  parallel_for(grid.blocks, [&](int64_t block) {
    const int64_t c = grid.channel(block), columns = grid.block(0, block).channels;
    double* total[2] = {first + c, second + c};
    int64_t rows = 0;
    for (int64_t group = 0; group < groups; ++group) {
      double* sums[2] = {partial.as<double>() + (2 * group) * channels + c,
                         partial.as<double>() + (2 * group + 1) * channels + c};
      const int64_t count = counts.as<int64_t>()[group * grid.blocks + block];
      if (group == 0)
        std::copy_n(sums[0], columns, total[0]), std::copy_n(sums[1], columns, total[1]);
      else merge(total, rows, sums, count, columns);
      rows += count;
    }
  });
}

}  // namespace

void batch_norm_stats(const BatchNormKernel& kernel, const BatchNormSize& size, const void* x,
                      double* mean, double* m2) {
  reduce_blocks(
      kernel, size, mean, m2,
      [&](const BatchNormBlock& block, int64_t offset, int64_t, double** out) {
        kernel.stats(block, at(x, offset), out[0], out[1]);
      },
      [](double** a, int64_t rows_a, double** b, int64_t rows_b, int64_t columns) {
        const double share = static_cast<double>(rows_b) / static_cast<double>(rows_a + rows_b);
        const double weight = share * static_cast<double>(rows_a);
        for (int64_t i = 0; i < columns; ++i) {
          const double delta = b[0][i] - a[0][i];
          a[0][i] += delta * share;
          a[1][i] += b[1][i] + delta * delta * weight;
        }
      });
}

void batch_norm_normalise(const BatchNormKernel& kernel, const BatchNormSize& size, const void* x,
                          const void* scale, const void* shift, void* y) {
  const int64_t bytes = parameter_bytes(kernel);
  map_blocks(kernel, size, [&](const BatchNormBlock& block, int64_t offset, int64_t c) {
    kernel.normalise(block, at(x, offset), at(scale, c * bytes), at(shift, c * bytes),
                     at(y, offset));
  });
}

void batch_norm_backward_reduce(const BatchNormKernel& kernel, const BatchNormSize& size,
                                const void* x, const void* dy, const void* mean, double* sum_dy,
                                double* sum_dyx) {
  const int64_t bytes = parameter_bytes(kernel);
  reduce_blocks(
      kernel, size, sum_dy, sum_dyx,
      [&](const BatchNormBlock& block, int64_t offset, int64_t c, double** out) {
        kernel.backward_reduce(block, at(x, offset), at(dy, offset), at(mean, c * bytes), out[0],
                               out[1]);
      },
      [](double** a, int64_t, double** b, int64_t, int64_t columns) {
        for (int k = 0; k < 2; ++k)
          for (int64_t i = 0; i < columns; ++i) a[k][i] += b[k][i];
      });
}

void batch_norm_backward_apply(const BatchNormKernel& kernel, const BatchNormSize& size,
                               const void* x, const void* dy, const void* a, const void* b,
                               const void* c, void* dx) {
  const int64_t bytes = parameter_bytes(kernel);
  map_blocks(kernel, size, [&](const BatchNormBlock& block, int64_t offset, int64_t channel) {
    kernel.backward_apply(block, at(x, offset), at(dy, offset), at(a, channel * bytes),
                          at(b, channel * bytes), at(c, channel * bytes), at(dx, offset));
  });
}

}  // namespace quern::kernels
