// Products without packing: of matrices with vectors, which memory bounds, of few rows or steps,
// and batches of small matrices.
#pragma once
#include "quern/ops/kernels/gemm/direct_kernel.h"
#include "quern/ops/kernels/gemm/gemm.h"

namespace quern::kernels {

/// The kernel that computes it faster than gemm() would, or null: other shapes, layouts and dtypes,
/// products of bf16 terms, a packed B. Told by the shape and the strides alone.
const DirectKernel* select_direct_kernel(const GemmProblem& problem, DType a_and_b);

/// As gemm().
void direct_product(const DirectKernel& kernel, const GemmProblem& problem);

}  // namespace quern::kernels
