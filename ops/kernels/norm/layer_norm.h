// The passes of layer_norm over all rows: threads, and the merging of partial sums.
#pragma once
#include "quern/ops/kernels/norm/layer_norm_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// For bf16, f32 or f64.
inline const LayerNormKernel& select_layer_norm_kernel(DType dtype) {
  return select_by_dtype<LayerNormKernel>(
      "layer_norm", dtype, [=](const LayerNormKernel& kernel) { return kernel.dtype == dtype; });
}

// Formulas and shapes as in the contract of the kernels.
void layer_norm_forward(const LayerNormKernel& kernel, const LayerNormRows& size, const void* x,
                        const void* weight, const void* bias, double eps, void* y, double* mean,
                        void* invstd);
/// dweight and dbias are written, in f64: groups of rows are summed in fixed order.
void layer_norm_backward(const LayerNormKernel& kernel, const LayerNormRows& size, const void* x,
                         const void* dy, const void* weight, const double* mean, const void* invstd,
                         void* dx, double* dweight, double* dbias);

}  // namespace quern::kernels
