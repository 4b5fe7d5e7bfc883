// What the losses of classes share: their checks, and the rows of an input with the target and the
// weight of each.
#pragma once
#include "quern/ops/detail/rows.h"
#include "quern/ops/loss.h"

namespace quern::detail {

/// The arguments of nll_loss and cross_entropy once checked. Row r of `along` (over dimension 1)
/// has the r-th target in logical order, whatever the format.
class ClassTargets {
 public:
  ClassTargets(std::string_view op, const Tensor& input, const Tensor& target, const Tensor& weight,
               int64_t ignore_index);

  int64_t rows() const { return along_.rows(); }
  int64_t classes() const { return along_.n; }
  const Along& along() const { return along_; }
  /// Where the class c of a row lies in the input.
  int64_t offset(int64_t row, int64_t c) const {
    if (along_.inner == 1) return row * along_.n + c;
    return (row / along_.inner * along_.n + c) * along_.inner + row % along_.inner;
  }
  int64_t target(int64_t row) const { return targets_[row]; }
  bool ignored(int64_t row) const { return target(row) == ignore_index_; }

  double weight(int64_t c) const { return weights_ ? weights_[c] : 1; }
  bool weighted() const { return weights_ != nullptr; }
  double weight_of_classes() const;  ///< Σ_c weight[c]
  double weight_of_targets() const;  ///< Σ weight[target] over those that are not ignored

  /// Loss per row (f64, [rows]) as the caller wants it.
  Tensor reduce(const Tensor& losses, Reduction reduction, DType dtype) const;
  /// What dy, the gradient of reduce()'s result, says of each row: f64 [rows].
  Tensor spread(const Tensor& dy, Reduction reduction) const;

 private:
  Along along_;
  Shape target_shape_;
  Tensor target_;  // dense copies, which nobody else can change
  Tensor weight_;  // f64
  const int64_t* targets_ = nullptr;
  const double* weights_ = nullptr;     // null: ones
  int64_t ignore_index_, ignored_ = 0;  // how many
};

}  // namespace quern::detail
