#include "quern/nn/embedding.h"

#include "quern/nn/init.h"
#include "quern/ops/embedding.h"
#include "quern/tensor/raw.h"

namespace quern::nn {

Embedding::Embedding(int64_t entries, int64_t features, std::optional<int64_t> padding_idx)
    : padding_idx(padding_idx) {
  check(entries >= 1 && features >= 1, "Embedding",
        "expected at least one entry and one feature, got {} and {}", entries, features);
  check(!padding_idx || (*padding_idx >= -entries && *padding_idx < entries), "Embedding",
        "padding_idx: expected {}..{}, got {}", -entries, entries - 1, padding_idx.value_or(0));
  weight = register_parameter("weight", empty({entries, features}));
  init::normal_(weight, 0, 1);
  if (padding_idx) raw::fill_(raw::select(weight, 0, *padding_idx), 0);
}

Tensor Embedding::forward(const Tensor& indices) { return embedding(indices, weight, padding_idx); }

}  // namespace quern::nn
