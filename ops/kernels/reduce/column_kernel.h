// The contract of a column kernel: what row_kernel.h does to a row, done to each column of a matrix
// of `rows` rows, `stride` elements apart, with columns next to each other:
//
//   max                   y[0][i] = max_r x[r][i] (NaN if there is one), index[i] = its first row
//   softmax               y[r][i] = exp(x[r][i]) / Σ_s exp(x[s][i])
//   softmax_backward      y[r][i] = x[r][i]·(dy[r][i] - Σ_s dy[s][i]·x[s][i])   x is the output
//   log_softmax           y[r][i] = x[r][i] - log Σ_s exp(x[s][i])
//   log_softmax_backward  y[r][i] = dy[r][i] - exp(x[r][i])·Σ_s dy[s][i]        x is the output
//
// f32 and bf16 are computed in f32, f64 in f64. A column's result does not depend on its place.
// Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

enum class ColumnOp : uint8_t {
#define QUERN_COLUMN(op) op,
#include "quern/ops/kernels/reduce/columns.inc"
};

struct Columns {
  int64_t rows, n;  // at least 1; max: at most kMostRows rows
  int64_t stride;
  const void* x;
  const void* dy = nullptr;
  void* y;                   // may be x or dy
  int64_t* index = nullptr;  // max
};
inline constexpr int64_t kMostRows = int64_t{1} << 24;  // which f32 counts

struct ColumnKernel {
  const char* name;  // <op>_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  ColumnOp op;
  DType dtype;
  void (*run)(const Columns&);
};

}  // namespace quern::kernels
