// Pooling over whole tensors: the tables of windows, and the loops over images and rows.
#pragma once
#include "quern/ops/kernels/pool/pool_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/storage.h"

namespace quern::kernels {

/// For bf16, f32 or f64, and numbers of channels and of a window's taps.
inline const PoolKernel& select_pool_kernel(DType dtype, int64_t channels, int64_t taps) {
  return select_by_dtype<PoolKernel>("pool", dtype, [=](const PoolKernel& kernel) {
    return kernel.dtype == dtype && kernel.min_channels <= channels &&
           channels <= kernel.max_channels && taps <= kernel.max_taps;
  });
}

/// The windows along one axis, with their tables.
struct PoolWindows {
  int64_t in, out;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
  CachedVector<PoolRange> inputs, outputs;
  CachedVector<int64_t> divisor;

  PoolAxis axis() const {
    return {in,     out,           stride,         padding,       dilation,
            kernel, inputs.data(), outputs.data(), divisor.data()};
  }
};

struct PoolStep {
  int64_t kernel, stride, padding, dilation;
};
/// How many windows fit; ceil_mode also counts one that starts before the padding on the far side
/// but reaches beyond it. Less than 1: none.
int64_t pooled_size(int64_t in, const PoolStep& step, bool ceil_mode);
/// Windows that start `stride` apart. count_include_pad: the divisor counts what lies in the
/// padding.
PoolWindows strided_windows(int64_t in, int64_t out, const PoolStep& step, bool count_include_pad);
/// Window o is floor(o·in/out) .. ceil((o+1)·in/out)-1.
PoolWindows adaptive_windows(int64_t in, int64_t out);

// x is [images][h.in][w.in][channels], y and index [images][h.out][w.out][channels].
void max_pool_forward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* x,
                      void* y, void* index);
void max_pool_backward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* dy,
                       const void* index, void* dx);
void avg_pool_forward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* x,
                      void* y);
void avg_pool_backward(const PoolKernel& kernel, const Pool& pool, int64_t images, const void* dy,
                       void* dx);

}  // namespace quern::kernels
