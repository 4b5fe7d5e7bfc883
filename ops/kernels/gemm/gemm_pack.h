// What the GEMM driver packs before it multiplies: rows of A for one cell, panels of B for all.
#pragma once
#include "quern/ops/kernels/gemm/gemm.h"

namespace quern::kernels {

/// Of an operand as it comes: f32 where bf16 terms are made of it.
inline DType operand_dtype(DType of_kernel, int bf16_terms) {
  return bf16_terms == 0 ? of_kernel : DType::f32;
}

/// Copies A[m×k], which starts at `a` and has the operand's strides, into rows ld apart, zero from
/// k to padded_k; terms lie term_items apart.
void pack_a_rows(const GemmKernel& kernel, const void* a, const GemmOperand& operand, int64_t m,
                 int64_t k, int64_t padded_k, int bf16_terms, void* to, int64_t ld,
                 int64_t term_items);

/// Packs B[k×n] of `batch` products in parallel, each its terms, one after the other.
void pack_b_batch(const GemmKernel& kernel, const GemmOperand& b, int64_t batch, int64_t k,
                  int64_t n, void* panels, int bf16_terms);

}  // namespace quern::kernels
