// MobileNetV3, large: Howard et al., "Searching for MobileNetV3", ICCV'19. Parameters and buffers
// are named as in torchvision, so that its weights load.
#pragma once
#include "quern/nn/mobilenet_v2.h"

namespace quern::nn {

/// [N, 3, H, W] to logits [N, num_classes]; 5,483,032 parameters with 1000 classes.
class MobileNetV3 : public ImageClassifier {
 public:
  /// With initial values as torchvision's.
  explicit MobileNetV3(const MobileNetOptions& options = {});
};

/// Of width 1.
inline MobileNetV3 mobilenet_v3_large(const MobileNetOptions& options = {}) {
  return MobileNetV3(options);
}

}  // namespace quern::nn
