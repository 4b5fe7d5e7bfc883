// What makes elements of C of their sums.
#pragma once
#include "quern/ops/kernels/gemm/gemm.h"

namespace quern::kernels {

/// C[m×n] at row i and column j of a product from its sums, of dtype `of_sums` and with rows ld
/// apart: C (+)= sums + bias, rounded once.
void complete(const GemmProblem& problem, int64_t batch, int64_t i, int64_t j, int64_t m, int64_t n,
              DType of_sums, const void* sums, int64_t ld);

}  // namespace quern::kernels
