// Losses. Autocast: f32. Shapes: input [N,C] or [N,C,d1,...], target i64 [N] or [N,d1,...] of
// classes. The mean of no rows is NaN, as is that of rows that are all ignored.
#pragma once
#include <string>

#include "quern/tensor/tensor.h"

namespace quern {

/// What becomes of the losses of rows: their mean, their sum, or each by itself.
enum class Reduction : uint8_t { mean, sum, none };

/// -weight[t]·input[t] for log-probabilities `input`; 0 where the target t is ignore_index. The
/// mean divides by the sum of weight[t] over targets that are not ignored. `weight`: floating [C],
/// or undefined for ones. Errors: undefined, not floating, no classes, shapes that do not match, a
/// target outside 0..C-1.
Tensor nll_loss(const Tensor& input, const Tensor& target, const Tensor& weight = {},
                int64_t ignore_index = -100, Reduction reduction = Reduction::mean);

/// nll_loss of log_softmax(input, 1), in one node that keeps two numbers a row. With label
/// smoothing ε the target distribution is (1-ε) at t plus ε/C everywhere: Szegedy et al. 2016.
/// Errors: those of nll_loss; label_smoothing outside 0..1.
Tensor cross_entropy(const Tensor& input, const Tensor& target, const Tensor& weight = {},
                     int64_t ignore_index = -100, Reduction reduction = Reduction::mean,
                     double label_smoothing = 0);

/// (input - target)², both of one shape. Errors: undefined, not floating, shapes that differ.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);

}  // namespace quern
