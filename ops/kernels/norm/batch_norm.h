// The passes of batch_norm over a whole x: blocks, threads, and the merging of partial sums.
#pragma once
#include "quern/ops/kernels/norm/batch_norm_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// For bf16, f32 or f64.
inline const BatchNormKernel& select_batch_norm_kernel(DType dtype, bool nhwc) {
  return select_by_dtype<BatchNormKernel>("batch_norm", dtype, [=](const BatchNormKernel& kernel) {
    return kernel.dtype == dtype && kernel.nhwc == nhwc;
  });
}

/// x is [images][pixels][channels] for an nhwc kernel, [images][channels][pixels] for an nchw one.
struct BatchNormSize {
  int64_t images, pixels, channels;  // at least 1
};

/// mean and Σ(x - mean)² a channel: blocks of fixed size are merged in fixed order by the formula
/// of Chan, Golub & LeVeque, "Algorithms for computing the sample variance", 1983, in f64.
void batch_norm_stats(const BatchNormKernel& kernel, const BatchNormSize& size, const void* x,
                      double* mean, double* m2);
/// y = (x - center)·scale + shift
void batch_norm_normalise(const BatchNormKernel& kernel, const BatchNormSize& size, const void* x,
                          const void* center, const void* scale, const void* shift, void* y);
/// sum_dy = Σdy and sum_dyx = Σdy·(x - center) a channel, merged as the statistics are.
void batch_norm_backward_reduce(const BatchNormKernel& kernel, const BatchNormSize& size,
                                const void* x, const void* dy, const void* center, double* sum_dy,
                                double* sum_dyx);
/// dx = a·dy + b·(x - center) + c
void batch_norm_backward_apply(const BatchNormKernel& kernel, const BatchNormSize& size,
                               const void* x, const void* dy, const void* center, const void* a,
                               const void* b, const void* c, void* dx);

}  // namespace quern::kernels
