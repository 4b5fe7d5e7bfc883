// The passes of the join kernels over whole tensors, nhwc [images·pixels, channels].
#pragma once
#include "quern/ops/kernels/norm/batch_norm.h"
#include "quern/ops/kernels/norm/join_kernel.h"

namespace quern::kernels {

// As JoinKernel tells; mask: [images·pixels][mask_words(channels)]. Sums are merged in fixed order.

void join_forward(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                  const JoinSide& shortcut, void* out, MaskWord* mask);
/// sum_shortcut, where shortcut.center is: Σdz·(shortcut.v - center); else it may be null.
void join_reduce(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                 const JoinSide& shortcut, const void* dout, const MaskWord* mask, double* sum_dz,
                 double* sum_branch, double* sum_shortcut);
void join_apply(const JoinKernel& kernel, const BatchNormSize& size, const JoinSide& branch,
                const JoinSide& shortcut, const void* dout, const MaskWord* mask);

}  // namespace quern::kernels
