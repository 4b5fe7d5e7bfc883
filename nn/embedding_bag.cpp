#include "quern/nn/embedding_bag.h"

#include "quern/nn/init.h"
#include "quern/tensor/raw.h"

namespace quern::nn {

EmbeddingBag::EmbeddingBag(int64_t entries, int64_t features, const EmbeddingBagOptions& options)
    : options(options) {
  check(entries >= 1 && features >= 1, "EmbeddingBag",
        "expected at least one entry and one feature, got {} and {}", entries, features);
  const auto padding = options.padding_idx;
  check(!padding || (*padding >= -entries && *padding < entries), "EmbeddingBag",
        "padding_idx: expected {}..{}, got {}", -entries, entries - 1, padding.value_or(0));
  weight = register_parameter("weight", empty({entries, features}));
  init::normal_(weight, 0, 1);
  if (padding) raw::fill_(raw::select(weight, 0, *padding), 0);
}

Tensor EmbeddingBag::forward(const Tensor& indices) {
  return embedding_bag(indices, weight, {}, options);
}

Tensor EmbeddingBag::operator()(const Tensor& indices, const Tensor& offsets,
                                const Tensor& per_sample_weights) {
  EmbeddingBagOptions with = options;
  with.per_sample_weights = per_sample_weights;
  return embedding_bag(indices, weight, offsets, with);
}

}  // namespace quern::nn
