// What the ops that look rows of a table up share.
#pragma once
#include <optional>
#include <string_view>

#include "quern/ops/embedding.h"

namespace quern::detail {

/// Errors of `op`: weight and options as embedding() has them. Returns padding_idx counted from the
/// start.
std::optional<int64_t> check_table(std::string_view op, const Tensor& weight,
                                   const EmbeddingOptions& options);

/// Scales those of these rows whose p-norm is more than `max_norm` to that, as torch.renorm does:
/// by max_norm / (norm + 1e-7). Records nothing; the version moves on.
void renorm_rows_(const Tensor& table, const Tensor& indices, double max_norm, double p);

/// The gradient of a table of which row indices[i] was looked up for i = 0 ... n-1:
/// row v is Σ weight[i] · dy[source[i], :] over the i with indices[i] = v, in rising order.
struct TableGrad {
  Tensor indices;                  // i64 [n], within the table
  Tensor dy;                       // [m, D]
  Tensor source;                   // i64 [n]; undefined: i
  Tensor weight;                   // [n], in the type that is summed in; undefined: 1
  int64_t rows;                    // of the table
  std::optional<int64_t> padding;  // a row that has no gradient
  bool scale_by_freq;              // divided by how often the row is there
  bool sparse;
};
/// [rows, D] in f32, in f64 for f64; row-sparse if asked.
Tensor table_gradient(const TableGrad& grad);

}  // namespace quern::detail
