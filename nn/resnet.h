// ResNet v1.5 and ResNeXt: He et al., "Deep residual learning for image recognition", CVPR'16, with
// the stride in the bottleneck's 3×3 convolution; Xie et al., "Aggregated residual transformations
// for deep neural networks", CVPR'17. Parameters and buffers are named as in torchvision, so that
// its weights load.
#pragma once
#include <array>
#include <string_view>

#include "quern/nn/linear.h"
#include "quern/nn/residual.h"
#include "quern/nn/sequential.h"

namespace quern::nn {

/// Of resnet18() and all below it.
struct ResNetOptions {
  int64_t num_classes = 1000;  ///< logits an image
  /// Starts each block as the identity: weight 0 in its last batch norm.
  bool zero_init_residual = false;
  /// Runs each block, and the stem, as one op. The same network to the eye and in a state_dict;
  /// only rounding, speed and memory differ.
  bool fuse = true;
  /// Groups of a bottleneck's 3×3 convolution.
  int64_t groups = 1;
  int64_t width_per_group = 64;  ///< how wide a group is where the stage's is 64
};

/// [N, 3, H, W] to logits [N, num_classes]. Convolutions start as kaiming_normal_, over fan_out and
/// for relu. In evaluation without gradients the batch goes through by slabs of images that stay in
/// cache (by_slab.h); the result has the same bits.
class ResNet : public Module {
 public:
  /// Two 3×3 convolutions, or a 3×3 between two 1×1.
  enum class Block { basic, bottleneck };
  /// `depths`: blocks in each of the four stages.
  ResNet(Block block, const std::array<int, 4>& depths, const ResNetOptions& options = {});
  Tensor forward(const Tensor& x) override;

 private:
  Conv2d& conv1_;
  BatchNorm2d& bn1_;
  Residual stem_;
  Sequential &layer1_, &layer2_, &layer3_, &layer4_;
  Linear& fc_;
};

ResNet resnet18(const ResNetOptions& options = {});   ///< 11,689,512 parameters
ResNet resnet34(const ResNetOptions& options = {});   ///< 21,797,672
ResNet resnet50(const ResNetOptions& options = {});   ///< 25,557,032
ResNet resnet101(const ResNetOptions& options = {});  ///< 44,549,160
ResNet resnet152(const ResNetOptions& options = {});  ///< 60,192,808
/// 25,028,904; of 32 groups, 4 wide
ResNet resnext50_32x4d(const ResNetOptions& options = {});
/// By name: "resnet50". Error: none of these.
ResNet resnet(std::string_view name, const ResNetOptions& options = {});

}  // namespace quern::nn
