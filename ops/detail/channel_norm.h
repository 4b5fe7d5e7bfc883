// What a batch norm does a channel, in f64 and kept in the dtype of its parameters: shared by
// batch_norm and the chains of ops/fused, which differ in how they pass over the pixels.
#pragma once
#include "quern/tensor/tensor.h"

namespace quern::detail {

/// The parameters of batch_norm; all but eps and momentum are [C] or undefined.
struct BatchNorm {
  Tensor running_mean, running_var, weight, bias;
  double momentum, eps;
};
/// Errors of batch_norm, for an x of this shape and dtype.
void check_batch_norm(const BatchNorm& norm, const Shape& x, DType dtype, bool training);

/// Mean and biased variance of each channel, f64.
struct Moments {
  explicit Moments(int64_t channels);
  explicit Moments(const BatchNorm& running);
  Tensor mean, var;
};
/// Moves the running statistics, where defined, towards those of `count` values a channel. Cannot
/// fail: an op does it when all else is done, so that an error leaves them as they were.
void update_running(const BatchNorm& norm, const Moments& moments, double count);

/// y = (x - center)·scale + shift. Each is [C], f32 (f64 for f64).
struct ChannelNorm {
  enum class Center {
    mean,  ///< as rounded: x - center is exact where the mean is large against the deviation
    zero,  ///< y = x·scale + shift, to be folded into a weight
  };
  ChannelNorm(const BatchNorm& norm, const Moments& moments, DType dtype,
              Center where = Center::mean);
  Tensor center, excess, scale, shift, invstd;  ///< excess: center - mean, which shift makes up for
};

/// Of the sums S = Σdy and Σdy·(x - center) over n values, which make T = Σdy·(x - mean), with
/// s = weight·invstd:
///   dx = s·(dy - S/n - (x - mean)·invstd²·T/n) = a·dy + b·(x - center) + c
///   dweight = T·invstd
///   dbias = S
struct ChannelGradients {
  ChannelGradients(const ChannelNorm& norm, const Tensor& weight, const double* sum_dy,
                   const double* sum_dyx, double count);
  Tensor a, b, c, weight, bias;
};

}  // namespace quern::detail
