// batch_norm: each channel to mean 0 and variance 1, then scaled and shifted.
// Ioffe & Szegedy, "Batch normalization", ICML'15.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern {

/// y = (x - mean) · invstd · weight + bias a channel, with invstd = 1/sqrt(var + eps).
///   x             [N, C, ...], bf16, f32 or f64; the output has its dtype and format
///   running_mean, running_var, weight, bias
///                 [C], each f32 or of x's dtype (f64 for f64); weight and bias may be undefined
///                 (1 and 0)
/// Training: mean and (biased) variance are those of x over all dimensions but C, and the running
/// ones, unless undefined, move towards them: r = (1-momentum)·r + momentum·s, the variance
/// unbiased here. Eval: mean and variance are the running ones, which must be defined. Errors: rank
/// < 2, empty, wrong dtype or size, eps or momentum NaN; in training, one value a channel, running
/// ones that are expanded.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum = 0.1,
                  double eps = 1e-5);

}  // namespace quern
