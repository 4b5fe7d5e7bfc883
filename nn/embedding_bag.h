// EmbeddingBag: torch.nn.EmbeddingBag.
#pragma once
#include "quern/nn/module.h"
#include "quern/ops/embedding_bag.h"

namespace quern::nn {

/// The sum, mean or maximum of bags of a table's rows. weight [entries, features] starts standard
/// normal, its row padding_idx as zeros.
/// Errors: sizes below 1, options that embedding_bag() refuses.
///
///   nn::EmbeddingBag words(1'000'000, 128, {.mode = BagMode::sum, .sparse = true});
///   words(indices, offsets);
class EmbeddingBag : public Module {
 public:
  /// per_sample_weights are the call's, not an option of the layer.
  EmbeddingBag(int64_t entries, int64_t features, const EmbeddingBagOptions& options = {});
  /// Bags of indices [B, k].
  Tensor forward(const Tensor& indices) override;
  /// Bags of indices [n] that begin at offsets [B]; or of [B, k] where these are undefined.
  Tensor operator()(const Tensor& indices, const Tensor& offsets,
                    const Tensor& per_sample_weights = {});
  using Module::operator();

  EmbeddingBagOptions options;  ///< as given
  Tensor weight;                ///< [entries, features], a parameter
};

}  // namespace quern::nn
