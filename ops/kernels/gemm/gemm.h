// C[m×n] (+)= A[m×k] · B[k×n] + bias[n], a batch of them: the loops around the micro-kernels.
#pragma once
#include "quern/ops/kernels/gemm/gemm_kernel.h"

namespace quern::kernels {

/// Matrices where they lie: element (i, j) of the l-th at
/// l·batch_stride + i·row_stride + j·col_stride, in elements. A transpose swaps strides; a
/// batch_stride of 0 shares one matrix. Strides may be 0 or less than what they step over: rows, or
/// columns, that are one or overlap.
struct GemmOperand {
  const void* data;
  int64_t row_stride, col_stride;
  int64_t batch_stride = 0;
};

struct GemmProblem {
  int64_t m, n, k;    // k = 0 is an empty sum: zeros
  int64_t batch = 1;  // products, each with a C of its own
  GemmOperand a, b;   // of the kernel's dtypes, or f32: see bf16_terms
  const void* packed_b =
      nullptr;    // what pack_gemm_b made of b, which then isn't read; batch_stride 0
  void* c;        // rows are dense
  DType c_dtype;  // the kernel's, or bf16 for f32: then rounded once, at the end
  int64_t c_row_stride, c_batch_stride = 0;
  const void* bias = nullptr;  // [n] of the kernel's c dtype, or null
  bool accumulate = false;     // false: C is written without being read
  // 0, or for a bf16 kernel the number of bf16 that each f32 of a and b becomes when it is packed
  // (bf16_terms.h).
  int bf16_terms = 0;
};

/// Runs in parallel, with the same bits for any number of threads.
void gemm(const GemmKernel& kernel, const GemmProblem& problem);

/// Bytes of a packed B[k×n].
int64_t packed_b_bytes(const GemmKernel& kernel, int64_t k, int64_t n, int bf16_terms = 0);
/// Packs B[k×n] in parallel, for GemmProblem::packed_b of the same bf16_terms.
void pack_gemm_b(const GemmKernel& kernel, const GemmOperand& b, int64_t k, int64_t n, void* panels,
                 int bf16_terms = 0);

}  // namespace quern::kernels
