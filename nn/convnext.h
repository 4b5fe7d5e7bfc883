// ConvNeXt, tiny: Liu et al., "A ConvNet for the 2020s", CVPR'22. Parameters are named as in
// torchvision, so that its weights load.
#pragma once
#include "quern/nn/linear.h"
#include "quern/nn/norm.h"
#include "quern/nn/sequential.h"

namespace quern::nn {

/// Of convnext_tiny().
struct ConvNeXtOptions {
  int64_t num_classes = 1000;     ///< logits an image
  double stochastic_depth = 0.1;  ///< of the last block; the first has 0, others between
  double layer_scale = 1e-6;      ///< what a block's branch is multiplied by at first
};

/// LayerNorm over the channels of [N, features, H, W], pixel by pixel; channels_last.
class LayerNorm2d : public LayerNorm {
 public:
  /// `eps` is torchvision's.
  explicit LayerNorm2d(int64_t features, double eps = 1e-6) : LayerNorm({features}, eps) {}
  Tensor forward(const Tensor& x) override;
};

/// [N, 3, H, W] to logits [N, num_classes]; 28,589,128 parameters with 1000 classes.
class ConvNeXt : public Module {
 public:
  /// With initial values as torchvision's.
  explicit ConvNeXt(const ConvNeXtOptions& options = {});
  Tensor forward(const Tensor& x) override;

 private:
  Sequential &features_, &classifier_;
};

/// Depths 3, 3, 9, 3 and widths 96 to 768.
inline ConvNeXt convnext_tiny(const ConvNeXtOptions& options = {}) { return ConvNeXt(options); }

}  // namespace quern::nn
