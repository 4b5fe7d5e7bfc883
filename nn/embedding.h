// Embedding: torch.nn.Embedding.
#pragma once
#include <optional>

#include "quern/nn/module.h"

namespace quern::nn {

/// The rows of a table: indices [...] of i64 to [..., features]. weight [entries, features]
/// starts standard normal. The row `padding_idx` (negative: from the end) stands for no entry: it
/// starts as zeros and gets no gradient. Errors: sizes below 1, a padding_idx outside of
/// -entries..entries-1; on call, an index outside of 0..entries-1.
class Embedding : public Module {
 public:
  Embedding(int64_t entries, int64_t features, std::optional<int64_t> padding_idx = {});
  Tensor forward(const Tensor& indices) override;

  std::optional<int64_t> padding_idx;
  Tensor weight;
};

}  // namespace quern::nn
