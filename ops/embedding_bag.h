// embedding_bag: rows of a table, a bag of them at a time.
#pragma once
#include "quern/ops/embedding.h"

namespace quern {

/// What becomes of the rows of a bag.
enum class BagMode { sum, mean, max };

/// As torch.nn.functional.embedding_bag's; those of EmbeddingOptions mean what they mean there.
struct EmbeddingBagOptions {
  BagMode mode = BagMode::mean;  ///< what becomes of a bag
  /// [n], of weight's dtype: what each row is multiplied by before it is added. For sums alone.
  Tensor per_sample_weights = {};
  /// The offsets end with the number of indices, which begins no bag.
  bool include_last_offset = false;
  /// Places of this row count for nothing: they are no part of their bag.
  std::optional<int64_t> padding_idx = {};
  std::optional<double> max_norm = {};  ///< as in EmbeddingOptions
  double norm_type = 2;                 ///< likewise
  bool scale_grad_by_freq = false;      ///< likewise
  bool sparse = false;                  ///< likewise
};

/// y[b, :] = the sum, mean or maximum of weight[indices[i], :] over the i of bag b; zeros for an
/// empty bag.
///   indices      i64 [n], with offsets; or [B, k], bags of k each, without
///   weight       [V, D], floating
///   offsets      i64 [B], where each bag begins in the indices; from 0, not decreasing
/// Sums are in f32 (f64 for f64), place after place. The gradient of a maximum goes to the first
/// place that has it. Errors: those of embedding(); offsets that are none; weights of another shape
/// or dtype, or other than for sums; a row-sparse gradient or one by frequency of a maximum.
Tensor embedding_bag(const Tensor& indices, const Tensor& weight, const Tensor& offsets = {},
                     const EmbeddingBagOptions& options = {});

}  // namespace quern
