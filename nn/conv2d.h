// Conv2d: torch.nn.Conv2d.
#pragma once
#include "quern/nn/module.h"
#include "quern/tensor/pair.h"

namespace quern::nn {

struct Conv2dOptions {
  Pair stride = 1;
  Pair padding = 0;
  Pair dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// conv2d of [N, in, H, W] with a weight [out, in/groups, kernel.h, kernel.w] and a bias [out],
/// which start as init::default_. The input's memory format is kept; the weight stays contiguous
/// and is packed by the op. Errors: sizes below 1; groups that do not divide both channel counts.
class Conv2d : public Module {
 public:
  Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, const Conv2dOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Conv2dOptions options;
  Tensor weight, bias;
};

}  // namespace quern::nn
