// Conv2d: torch.nn.Conv2d.
#pragma once
#include "quern/nn/module.h"
#include "quern/tensor/pair.h"

namespace quern::nn {

/// What conv2d() takes beside tensors.
struct Conv2dOptions {
  Pair stride = 1;     ///< of the window, in pixels
  Pair padding = 0;    ///< rows and columns of zeros on each side
  Pair dilation = 1;   ///< distance between taps
  int64_t groups = 1;  ///< of channels, each convolved by itself
  bool bias = true;    ///< whether there is one
};

/// conv2d of [N, in, H, W] with a weight [out, in/groups, kernel.h, kernel.w] and a bias [out],
/// which start as init::default_. The input's memory format is kept; the weight stays contiguous
/// and is packed by the op. Errors: sizes below 1; groups that do not divide both channel counts.
class Conv2d : public Module {
 public:
  /// `kernel`: {height, width}, or one number for both.
  Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, const Conv2dOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Conv2dOptions options;  ///< as given
  Tensor weight, bias;    ///< parameters; the bias undefined where there is none
};

}  // namespace quern::nn
