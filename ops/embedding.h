// embedding: rows of a table.
#pragma once
#include <optional>

#include "quern/tensor/tensor.h"

namespace quern {

/// As torch.nn.functional.embedding's.
struct EmbeddingOptions {
  /// A row whose gradient stays zero; negative counts from the end.
  std::optional<int64_t> padding_idx = {};
  /// Rows that are looked up and longer than this are scaled to it first, in the table itself.
  std::optional<double> max_norm = {};
  double norm_type = 2;  ///< the p of that norm, (Σ |x|ᵖ)^(1/p); may be infinite
  /// Divides a row's gradient by how many places look it up.
  bool scale_grad_by_freq = false;
  /// The table's gradient is row-sparse (Tensor::is_sparse): only the rows that were looked up, so
  /// that work and memory follow these. The table is a leaf, then.
  bool sparse = false;
};

/// y[..., :] = weight[indices[...], :], in weight's dtype.
///   indices      i64, any shape
///   weight       [V, D], floating
/// Backward: row v of dweight is the sum of dy over the places where v stands, in their order; in
/// f32 for bf16.
/// Errors: an index outside 0..V-1, other dtypes or ranks, a padding_idx outside -V..V-1, max_norm
/// negative or NaN, norm_type not positive.
Tensor embedding(const Tensor& indices, const Tensor& weight, const EmbeddingOptions& options);
Tensor embedding(const Tensor& indices, const Tensor& weight,
                 std::optional<int64_t> padding_idx = {});

}  // namespace quern
