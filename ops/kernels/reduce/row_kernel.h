// The contract of a row kernel: a row of n adjacent elements, reduced or mapped with statistics of
// the whole row, or several such rows, one after the other, so that what one waits for others fill.
// f32 and bf16 are computed and accumulated in f32, f64 in f64. T is the dtype of
// the elements, A what it accumulates in. Files compiled with ISA flags include this.
//
//   sum                     out[0] = Σ_i x[i]
//   sum_rows                out[i] = Σ_r x[r·stride + i], r < rows
//   max                     out[0] = the largest x[i] (NaN if there is one),
//                           index[0] = the first place of it
//   softmax                 y[i] = exp(x[i]) / Σ_j exp(x[j])
//   softmax_backward        dx[i] = y[i]·(dy[i] - Σ_j dy[j]·y[j]), from x = y, the output
//   log_softmax             y[i] = x[i] - log Σ_j exp(x[j])
//   log_softmax_backward    dx[i] = dy[i] - exp(y[i])·Σ_j dy[j], from x = y, the output
//   log_sum_exp             out[0] = max_j x[j], out[1] = log Σ_j exp(x[j] - out[0])
//   cross_entropy_backward  dx[i] = a·p[i] - b·weight[i] - (i == target ? c : 0),
//                           p[i] = exp((x[i] - out[0]) - out[1]) by log_sum_exp's statistics
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

enum class RowOp : uint8_t {
#define QUERN_ROW(op) op,
#include "quern/ops/kernels/reduce/ops.inc"
};

/// Rows that a kernel takes at once, at most: few enough that they stay in L1.
inline constexpr int64_t kRowsAtOnce = 16, kRowsElements = 4096;
inline int64_t rows_at_once(int64_t n) {
  const int64_t fit = kRowsElements / n;
  return fit < 1 ? 1 : fit < kRowsAtOnce ? fit : kRowsAtOnce;
}

struct Row {
  int64_t n;  // at least 1
  /// Rows of x, dy and y, and results in out and index, that follow each other: up to
  /// rows_at_once(n); 1 for sum_rows and cross_entropy_backward.
  int64_t count = 1;
  const void* x = nullptr;       // T[n]; sum_rows: T[rows][n]
  const void* dy = nullptr;      // T[n]
  void* y = nullptr;             // T[n]: y, or dx; may be x or dy
  void* out = nullptr;           // A[1], A[2], sum_rows: A[n]; read by cross_entropy_backward
  int64_t* index = nullptr;      // max
  int64_t rows = 1, stride = 0;  // sum_rows, in elements
  const void* weight = nullptr;  // A[n], or null for ones
  int64_t target = -1;
  double a = 0, b = 0, c = 0;
};

struct RowKernel {
  const char* name;  // <op>_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  RowOp op;
  DType dtype;
  void (*run)(const Row&);
};

}  // namespace quern::kernels
