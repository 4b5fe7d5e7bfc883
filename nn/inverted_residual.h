// What MobileNets and EfficientNets are made of: convolutions with a batch norm and an activation,
// squeeze-and-excitation, and the inverted residual block. Sandler et al., "MobileNetV2: inverted
// residuals and linear bottlenecks", CVPR'18.
#pragma once
#include <optional>

#include "quern/nn/dropout.h"
#include "quern/nn/residual.h"
#include "quern/nn/sequential.h"

namespace quern::nn {

/// The multiple of 8 nearest to it, but no less than 0.9 times as much: torchvision's
/// _make_divisible.
int64_t round_channels(double channels);

/// Of ConvNormActivation.
struct ConvNormOptions {
  int64_t stride = 1, groups = 1;            ///< of the convolution
  Activation activation = Activation::relu;  ///< what follows the batch norm
  double eps = 1e-5, momentum = 0.1;         ///< of the batch norm
  bool fuse = true;                          ///< as one op
};

/// A convolution without a bias, whose output has the size of the input over the stride, a batch
/// norm and an activation; named "0" and "1": torchvision's Conv2dNormActivation.
class ConvNormActivation : public Module {
 public:
  /// `inputs`, `outputs`: channels. The filters are kernel×kernel.
  ConvNormActivation(int64_t inputs, int64_t outputs, int64_t kernel,
                     const ConvNormOptions& options);
  Tensor forward(const Tensor& x) override { return residual_(x); }
  /// The two, for a block that runs them itself.
  const ConvNorm& layers() const { return residual_.branch[0]; }

 private:
  Residual residual_;
};

/// x·scale(fc2(activation(fc1(the mean of x over its pixels)))), with 1×1 convolutions. Hu et al.,
/// "Squeeze-and-excitation networks", CVPR'18.
class SqueezeExcitation : public Module {
 public:
  using Function = Tensor (*)(const Tensor&);  ///< an op of one argument
  /// `squeezed`: channels between fc1 and fc2.
  SqueezeExcitation(int64_t channels, int64_t squeezed, Function activation, Function scale);
  Tensor forward(const Tensor& x) override;
  /// What x is multiplied by, of its means [N, C, 1, 1].
  Tensor factors(const Tensor& means);

 private:
  Conv2d &fc1_, &fc2_;
  Function activation_, scale_;
};

/// A branch of convolutions, squeezed and excited before the last, whose activation is none; added
/// to its input where it has that shape: one op. A network's block registers the layers by its own
/// names.
class InvertedResidual : public Module {
 public:
  Tensor forward(const Tensor& x) override;

 protected:
  explicit InvertedResidual(bool fuse) { branch_.fuse = fuse; }         ///< without layers yet
  void add(const ConvNorm& layer) { branch_.branch.push_back(layer); }  ///< the next layer
  /// Adds a ConvNormActivation to `layers` of the network's block, as the next layer.
  void add(Sequential& layers, int64_t inputs, int64_t outputs, int64_t kernel,
           const ConvNormOptions& options) {
    add(layers.add(ConvNormActivation(inputs, outputs, kernel, options)).layers());
  }
  void squeeze(SqueezeExcitation& module);  ///< after the last of the layers until now
  /// After the last layer. `depth`: registered if there is any.
  void connect(bool shortcut, double depth = 0);

 private:
  Residual branch_;
  StochasticDepth* depth_ = nullptr;
};

/// Features, their mean over pixels, and a classifier: torchvision's mobile networks.
class ImageClassifier : public Module {
 public:
  Tensor forward(const Tensor& x) override;

 protected:
  /// Registers both, by these names.
  ImageClassifier(Sequential features, Sequential classifier);
  /// torchvision's for all of them: He's normal over fan_out for convolutions, no biases.
  void initialise();
  Sequential& features_;    ///< [N, 3, H, W] to [N, C, h, w]
  Sequential& classifier_;  ///< [N, C] to logits
};

}  // namespace quern::nn
