// Embedding: torch.nn.Embedding.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// The rows of a table: indices [...] of i64 to [..., features]. weight [entries, features]
/// starts standard normal. Errors: sizes below 1; on call, an index outside of 0..entries-1.
class Embedding : public Module {
 public:
  Embedding(int64_t entries, int64_t features);
  Tensor forward(const Tensor& indices) override;

  Tensor weight;
};

}  // namespace quern::nn
