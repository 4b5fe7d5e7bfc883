#include "quern/nn/embedding.h"

#include "quern/nn/init.h"
#include "quern/ops/embedding.h"

namespace quern::nn {

Embedding::Embedding(int64_t entries, int64_t features) {
  check(entries >= 1 && features >= 1, "Embedding",
        "expected at least one entry and one feature, got {} and {}", entries, features);
  weight = register_parameter("weight", empty({entries, features}));
  init::normal_(weight, 0, 1);
}

Tensor Embedding::forward(const Tensor& indices) { return embedding(indices, weight); }

}  // namespace quern::nn
