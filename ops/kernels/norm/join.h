// The passes of the join kernels over whole tensors, nhwc [images·pixels, channels].
#pragma once
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/ops/kernels/norm/join_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// For bf16, f32 or f64.
inline const JoinKernel& select_join_kernel(DType dtype) {
  return select_by_dtype<JoinKernel>(
      "join", dtype, [=](const JoinKernel& kernel) { return kernel.dtype == dtype; });
}

// As JoinKernel tells; mask: [images·pixels][mask_words(channels)]; a gradient's scale and shift:
// [images][channels]. Sums are merged in fixed order.

void join_forward(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                  const JoinSide& shortcut, void* out, MaskWord* mask);
/// Without a shortcut or a mask. sums: [images][channels]
void join_forward_sums(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                       void* out, double* sums);
/// sum_shortcut, where shortcut.map.center is: Σdz·(shortcut.v - center); else it may be null.
void join_reduce(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                 const JoinSide& shortcut, const JoinGradient& gradient, double* sum_dz,
                 double* sum_branch, double* sum_shortcut);
void join_apply(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                const JoinSide& shortcut, const JoinGradient& gradient);

}  // namespace quern::kernels
