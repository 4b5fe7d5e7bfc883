// matmul: products of matrices and vectors, and batches of them.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// y[..., i, j] = Σ_p a[..., i, p]·b[..., p, j], as torch.matmul:
///   a [..., m, k], b [..., k, n], bf16, f32 or f64, any strides; the leading dimensions broadcast,
///   y is [..., m, n] of the same dtype. A 1-D a is a row, a 1-D b a column, and y lacks that
///   dimension.
/// Autocast: a and b in bf16. Sums in f32 (f64 for f64), rounded once; k = 0 gives zeros.
/// f32 outside autocast is multiplied as set_float32_matmul_precision() says.
/// Backward: da = dy·bᵀ, db = aᵀ·dy, summed over the dimensions that were broadcast (in f32 for
/// bf16). Errors: other dtypes, a tensor without dimensions, sizes that don't match.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace quern
