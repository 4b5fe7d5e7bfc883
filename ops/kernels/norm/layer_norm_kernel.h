// The contract of the layer_norm kernels. They see dense rows [rows][columns] of `dtype`, each
// normalised by itself; weight, bias [columns] and invstd [rows] are of what it is computed in:
// f32, f64 for f64. The mean [rows] is f64: a large one, rounded, would be off by digits of
// x - mean. Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

struct LayerNormRows {
  int64_t rows, columns;  // at least 1
};

struct LayerNormKernel {
  const char* name;  // layer_norm_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  DType dtype;
  /// invstd = 1/sqrt(Σ(x - mean)²/columns + eps) and y = (x - mean)·invstd·weight + bias
  void (*forward)(const LayerNormRows&, const void* x, const void* weight, const void* bias,
                  double eps, void* y, double* mean, void* invstd);
  /// With g = dy·weight, h = (x - mean)·invstd and means over a row:
  ///   dx = invstd·(g - mean(g) - h·mean(g·h)),   dweight += Σ_rows dy·h,   dbias += Σ_rows dy
  void (*backward)(const LayerNormRows&, const void* x, const void* dy, const void* weight,
                   const double* mean, const void* invstd, void* dx, void* dweight, void* dbias);
};

}  // namespace quern::kernels
