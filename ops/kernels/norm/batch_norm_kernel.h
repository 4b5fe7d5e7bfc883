// The contract of the batch_norm kernels. They see one block of x, rows (pixels) by channels:
//
//     nhwc: element (r, c) lies at r·stride + c      nchw: at c·stride + r
//
// and everything that is kept a channel as arrays [channels]. Elements are of `dtype`; parameters
// (center, scale, shift, a, b, c) of what it is computed in: f32, f64 for f64. What is summed over
// rows leaves as f64, so that the driver may merge any number of blocks. Files compiled with ISA
// flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

struct BatchNormBlock {
  int64_t rows, channels;  // at least 1
  int64_t stride;          // elements between rows (nhwc) or channels (nchw)
};

struct BatchNormKernel {
  const char* name;  // batch_norm_<dtype>_<layout>_<isa>; the naive one ends in _reference
  Isa isa;
  DType dtype;
  bool nhwc;
  /// mean = Σx / rows and m2 = Σ(x - mean)²
  void (*stats)(const BatchNormBlock&, const void* x, double* mean, double* m2);
  /// y = (x - center)·scale + shift
  void (*normalise)(const BatchNormBlock&, const void* x, const void* center, const void* scale,
                    const void* shift, void* y);
  /// sum_dy = Σdy and sum_dyx = Σdy·(x - center)
  void (*backward_reduce)(const BatchNormBlock&, const void* x, const void* dy, const void* center,
                          double* sum_dy, double* sum_dyx);
  /// dx = a·dy + b·(x - center) + c
  void (*backward_apply)(const BatchNormBlock&, const void* x, const void* dy, const void* center,
                         const void* a, const void* b, const void* c, void* dx);
};

}  // namespace quern::kernels
