// embedding: rows of a table.
#pragma once
#include <optional>

#include "quern/tensor/tensor.h"

namespace quern {

/// y[..., :] = weight[indices[...], :], in weight's dtype.
///   indices      i64, any shape
///   weight       [V, D], floating
///   padding_idx  a row whose gradient stays zero; negative counts from the end
/// Backward: row v of dweight is the sum of dy over the places where v stands, in their order.
/// Errors: an index outside 0..V-1, other dtypes or ranks.
Tensor embedding(const Tensor& indices, const Tensor& weight,
                 std::optional<int64_t> padding_idx = {});

}  // namespace quern
