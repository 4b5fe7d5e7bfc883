// What a convolution does besides, to data that passes through its hands anyway: a batch norm and
// relu around it cost no pass over memory of their own. Arrays a channel are f32 (f64 for f64),
// sums that leave are f64. Whatever is null is left out.
#pragma once

namespace quern::kernels {

/// How each channel of x is read: v ↦ (v - center)·scale + shift, then at least 0: the batch norm and
/// relu before the convolution, never stored. Zero padding stays zero. Rounded to x's dtype, as the
/// composition is.
struct SourceMap {
  const void *center = nullptr, *scale = nullptr, *shift = nullptr;  // [ic], all or none
};

/// Forward: y = relu(sum + shift + residual), and the moments of the sums.
struct ForwardFusion {
  SourceMap source = {};
  const void* shift = nullptr;     // [oc]: the bias, or that of a batch norm folded into the weight
  const void* residual = nullptr;  // like y, may be y itself
  bool relu = false;
  /// [oc]: mean and Σ(v - mean)² of the sums over images and pixels, before they are rounded;
  /// merged in fixed order as those of batch_norm_stats. Without shift, residual and relu.
  double *mean = nullptr, *m2 = nullptr;
};

/// dgrad: dx = sum + residual, or what is left of it where the relu after a batch norm of x passed it on:
///     dz = ((x - center)·scale + shift > 0) · (sum + residual)
/// and its sums Σdz and Σdz·(x - center) over images and pixels, which the batch norm's gradient is made of.
struct DgradFusion {
  const void* residual = nullptr;                                    // like dx, may be dx itself
  const void* x = nullptr;                                           // like dx
  const void *center = nullptr, *scale = nullptr, *shift = nullptr;  // [ic], with x
  double *sum_dz = nullptr, *sum_dzx = nullptr;                      // [ic], with x
};

}  // namespace quern::kernels
