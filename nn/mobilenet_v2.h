// MobileNetV2: Sandler et al., CVPR'18. Parameters and buffers are named as in torchvision, so that
// its weights load.
#pragma once
#include "quern/nn/inverted_residual.h"

namespace quern::nn {

/// Of mobilenet_v2() and mobilenet_v3_large().
struct MobileNetOptions {
  int64_t num_classes = 1000;  ///< logits an image
  double dropout = 0.2;        ///< before the classifier's last layer
  bool fuse = true;            ///< Each block as one op; only rounding, speed and memory differ.
};

/// [N, 3, H, W] to logits [N, num_classes]; 3,504,872 parameters with 1000 classes.
class MobileNetV2 : public ImageClassifier {
 public:
  /// With initial values as torchvision's.
  explicit MobileNetV2(const MobileNetOptions& options = {});
};

/// Of width 1.
inline MobileNetV2 mobilenet_v2(const MobileNetOptions& options = {}) {
  return MobileNetV2(options);
}

}  // namespace quern::nn
