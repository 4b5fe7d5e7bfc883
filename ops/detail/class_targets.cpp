#include "quern/ops/detail/class_targets.h"

#include <algorithm>

#include "quern/tensor/raw.h"

namespace quern::detail {
namespace {

void check_arguments(std::string_view op, const Tensor& input, const Tensor& target,
                     const Tensor& weight) {
  check(input.defined() && is_floating(input.dtype()) && input.dim() >= 2 && input.shape()[1] > 0,
        op, "input: expected bf16, f32 or f64 [N,C,...] of at least one class, got {}", input);
  Shape expected = input.shape();
  expected.erase(1);
  check(target.defined() && target.dtype() == DType::i64 && target.shape() == expected, op,
        "target: expected i64 {} for input {}, got {}", expected, input.shape(), target);
  check(!weight.defined() ||
            (is_floating(weight.dtype()) && weight.shape() == Shape{input.shape()[1]}),
        op, "weight: expected bf16, f32 or f64 [{}], got {}", input.shape()[1], weight);
}

}  // namespace

ClassTargets::ClassTargets(std::string_view op, const Tensor& input, const Tensor& target,
                           const Tensor& weight, int64_t ignore_index)
    : ignore_index_(ignore_index) {
  check_arguments(op, input, target, weight);
  along_ = detail::along(raw::contiguous(input, input.format()), 1);
  target_shape_ = target.shape();
  target_ = raw::reshape(raw::clone(raw::contiguous(target)), {target.numel()});
  targets_ = target_.data<int64_t>();
  if (weight.defined()) {
    weight_ = raw::clone(raw::contiguous(raw::to(weight, DType::f64)));
    weights_ = weight_.data<double>();
  }
  const int64_t *t = targets_, n = rows(), most = classes() - 1;
  uint64_t outside = 0;  // rows whose target is no class: t or most - t has the sign bit
  for (int64_t row = 0; row < n; ++row) {
    const auto target = static_cast<uint64_t>(t[row]);
    outside += (target | (static_cast<uint64_t>(most) - target)) >> 63;
  }
  const bool ignores_a_class = ignore_index >= 0 && ignore_index <= most;
  if (outside != 0 || ignores_a_class) ignored_ = std::count(t, t + n, ignore_index);
  const bool bad = outside != (ignores_a_class ? 0 : static_cast<uint64_t>(ignored_));
  for (int64_t row = 0; bad && row < n; ++row)
    check(ignored(row) || (this->target(row) >= 0 && this->target(row) < classes()), op,
          "target: expected 0..{} or ignore_index {}, got {} at index {}", classes() - 1,
          ignore_index, this->target(row), row);
}

double ClassTargets::weight_of_classes() const {
  double total = 0;
  for (int64_t c = 0; c < classes(); ++c) total += weight(c);
  return total;
}

double ClassTargets::weight_of_targets() const {
  if (!weighted()) return static_cast<double>(rows() - ignored_);
  double total = 0;
  for (int64_t row = 0; row < rows(); ++row)
    if (!ignored(row)) total += weight(target(row));
  return total;
}

Tensor ClassTargets::reduce(const Tensor& losses, Reduction reduction, DType dtype) const {
  if (reduction == Reduction::none) return raw::to(raw::reshape(losses, target_shape_), dtype);
  const double* loss = losses.data<double>();
  constexpr int64_t kSums = 8;  // side by side: each addition waits for the one before
  double sums[kSums] = {};
  const int64_t n = rows(), whole = n - n % kSums;
  for (int64_t row = 0; row < whole; row += kSums)
    for (int64_t k = 0; k < kSums; ++k) sums[k] += loss[row + k];
  for (int64_t k = 0; k < n - whole; ++k) sums[k] += loss[whole + k];
  double total = 0;
  for (const double sum : sums) total += sum;
  if (reduction == Reduction::mean) total /= weight_of_targets();
  return full({}, total, dtype);
}

Tensor ClassTargets::spread(const Tensor& dy, Reduction reduction) const {
  Tensor gradients = empty({rows()}, DType::f64);
  double* g = gradients.out<double>();
  if (reduction == Reduction::none) {
    raw::copy_(gradients, raw::reshape(dy, {rows()}));
  } else {
    const double each = dy.item() / (reduction == Reduction::mean ? weight_of_targets() : 1);
    std::fill_n(g, rows(), each);
  }
  for (int64_t row = 0; row < rows(); ++row)
    if (ignored(row)) g[row] = 0;
  return gradients;
}

}  // namespace quern::detail
