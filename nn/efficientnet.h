// EfficientNet-B0: Tan and Le, "EfficientNet: rethinking model scaling for convolutional neural
// networks", ICML'19. Parameters and buffers are named as in torchvision, so that its weights load.
#pragma once
#include "quern/nn/inverted_residual.h"

namespace quern::nn {

/// Of efficientnet_b0().
struct EfficientNetOptions {
  int64_t num_classes = 1000;     ///< logits an image
  double dropout = 0.2;           ///< before the classifier
  double stochastic_depth = 0.2;  ///< of a block after the last; the first has 0, others between
  bool fuse = true;               ///< as in MobileNetOptions
};

/// [N, 3, H, W] to logits [N, num_classes]; 5,288,548 parameters with 1000 classes.
class EfficientNet : public ImageClassifier {
 public:
  /// With initial values as torchvision's.
  explicit EfficientNet(const EfficientNetOptions& options = {});
};

/// The network that the others of the paper are scaled from.
inline EfficientNet efficientnet_b0(const EfficientNetOptions& options = {}) {
  return EfficientNet(options);
}

}  // namespace quern::nn
