#include "quern/ops/kernels/norm/batch_norm.h"

#include "quern/ops/kernels/moments.h"
#include "quern/ops/kernels/norm/channel_blocks.h"

namespace quern::kernels {
namespace {

ChannelLayout layout(const BatchNormKernel& kernel, const BatchNormSize& size) {
  return {size, kernel.nhwc, kernel.dtype};
}

/// 32 KiB: the statistics are taken in two passes, of which the second finds them in the cache.
BlockLimits limits(const BatchNormKernel& kernel) {
  return {.elements = (32 << 10) / itemsize(kernel.dtype), .columns = 256};
}

}  // namespace

void batch_norm_stats(const BatchNormKernel& kernel, const BatchNormSize& size, const void* x,
                      double* mean, double* m2) {
  reduce_blocks<2>(
      layout(kernel, size), limits(kernel), {mean, m2},
      [&](const BatchNormBlock& block, int64_t offset, int64_t, const Sums<2>& out) {
        kernel.stats(block, at(x, offset), out[0], out[1]);
      },
      [](const Sums<2>& a, int64_t rows_a, const Sums<2>& b, int64_t rows_b, int64_t columns) {
        merge_moments(a[0], a[1], rows_a, b[0], b[1], rows_b, columns);
      });
}

void batch_norm_normalise(const BatchNormKernel& kernel, const BatchNormSize& size, const void* x,
                          const void* center, const void* scale, const void* shift, void* y) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  map_blocks(layout(kernel, size), [&](const BatchNormBlock& block, int64_t offset, int64_t c) {
    kernel.normalise(block, at(x, offset), at(center, c * bytes), at(scale, c * bytes),
                     at(shift, c * bytes), at(y, offset));
  });
}

void batch_norm_backward_reduce(const BatchNormKernel& kernel, const BatchNormSize& size,
                                const void* x, const void* dy, const void* center, double* sum_dy,
                                double* sum_dyx) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  reduce_blocks<2>(
      layout(kernel, size), limits(kernel), {sum_dy, sum_dyx},
      [&](const BatchNormBlock& block, int64_t offset, int64_t c, const Sums<2>& out) {
        kernel.backward_reduce(block, at(x, offset), at(dy, offset), at(center, c * bytes), out[0],
                               out[1]);
      },
      AddSums{});
}

void batch_norm_backward_apply(const BatchNormKernel& kernel, const BatchNormSize& size,
                               const void* x, const void* dy, const void* center, const void* a,
                               const void* b, const void* c, void* dx) {
  const int64_t bytes = parameter_bytes(kernel.dtype);
  map_blocks(
      layout(kernel, size), [&](const BatchNormBlock& block, int64_t offset, int64_t channel) {
        kernel.backward_apply(block, at(x, offset), at(dy, offset), at(center, channel * bytes),
                              at(a, channel * bytes), at(b, channel * bytes),
                              at(c, channel * bytes), at(dx, offset));
      });
}

}  // namespace quern::kernels
