#include "quern/nn/embedding.h"

#include "quern/nn/init.h"
#include "quern/ops/detail/lookup.h"
#include "quern/tensor/raw.h"

namespace quern::nn {

Embedding::Embedding(int64_t entries, int64_t features, const EmbeddingOptions& options)
    : options(options) {
  check(entries >= 1 && features >= 1, "Embedding",
        "expected at least one entry and one feature, got {} and {}", entries, features);
  const auto padding = options.padding_idx;
  check(!padding || (*padding >= -entries && *padding < entries), "Embedding",
        "padding_idx: expected {}..{}, got {}", -entries, entries - 1, padding.value_or(0));
  weight = register_parameter("weight", empty({entries, features}));
  init::normal_(weight, 0, 1);
  if (padding) raw::fill_(raw::select(weight, 0, *padding), 0);
}

Embedding::Embedding(int64_t entries, int64_t features, std::optional<int64_t> padding_idx)
    : Embedding(entries, features, EmbeddingOptions{.padding_idx = padding_idx}) {}

Embedding::Embedding(const Tensor& table, const EmbeddingOptions& options) : options(options) {
  detail::check_table("Embedding", table, options);
  weight = register_parameter("weight", table);
}

Tensor Embedding::forward(const Tensor& indices) { return embedding(indices, weight, options); }

}  // namespace quern::nn
