// The contract of a kernel for products that are too small, or too thin, for packing to pay: it
// reads both operands where they lie. Sums are in f32. Files compiled with ISA flags include this.
#pragma once
#include <cstdint>

#include "quern/ops/kernels/unit.h"

namespace quern::kernels {

struct Direct {
  int64_t m, n, k;
  const void* a;  // element (i, p) at i·a_row + p·a_col
  int64_t a_row, a_col;
  const void* b;  // element (p, j) at p·b_row + j·b_col
  int64_t b_row, b_col;
  float* c;  // element (i, j) at i·c_row + j·c_col; written without being read
  int64_t c_row, c_col;
  void* rounded = nullptr;  // not null: C goes here, rounded to bf16, and not to c
};

struct DirectKernel {
  const char* name;  // direct_<dtype>_<isa>; the naive one ends in _reference
  Isa isa;
  DType dtype;                  // of A and B
  void (*rows)(const Direct&);  // C = A·B, vectors along the rows of B and C: b_col, c_col are 1
  void (*dots)(const Direct&);  // the same of few columns, where a_col and b_row are 1: along k
  bool rounds = false;          // rows() of bf16 takes `rounded`
};

}  // namespace quern::kernels
