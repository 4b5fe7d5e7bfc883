// Embedding: torch.nn.Embedding.
#pragma once
#include <optional>

#include "quern/nn/module.h"
#include "quern/ops/embedding.h"

namespace quern::nn {

/// The rows of a table: indices [...] of i64 to [..., features]. weight [entries, features]
/// starts standard normal. The row `padding_idx` (negative: from the end) stands for no entry: it
/// starts as zeros and gets no gradient. Errors: sizes below 1, options that embedding() refuses;
/// on call, an index outside of 0..entries-1.
///
///   nn::Embedding words(1'000'000, 128, {.sparse = true});  // trained by the rows that are used
class Embedding : public Module {
 public:
  /// With all options, or with a padding_idx alone.
  Embedding(int64_t entries, int64_t features, const EmbeddingOptions& options);
  Embedding(int64_t entries, int64_t features, std::optional<int64_t> padding_idx = {});
  /// On a table of one's own [entries, features], such as a RowTable's, as it is: it becomes the
  /// parameter.
  explicit Embedding(const Tensor& table, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& indices) override;

  EmbeddingOptions options;  ///< as given
  Tensor weight;             ///< [entries, features], a parameter
};

}  // namespace quern::nn
