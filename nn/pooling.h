// Pools: torch.nn.MaxPool2d, AvgPool2d, AdaptiveAvgPool2d. Inputs [N, C, H, W]; the format is kept.
#pragma once
#include <optional>

#include "quern/nn/module.h"
#include "quern/tensor/pair.h"

namespace quern::nn {

/// What max_pool2d() takes beside tensors.
struct MaxPool2dOptions {
  std::optional<Pair> stride = {};  ///< the kernel's size unless given
  Pair padding = 0;                 ///< on each side; never the largest
  Pair dilation = 1;                ///< distance between what a window sees
  bool ceil_mode = false;           ///< also a last window that reaches out at the end
};

/// The largest of each window. Errors, when it is called: those of max_pool2d().
class MaxPool2d : public Module {
 public:
  /// `kernel`: the window's size.
  explicit MaxPool2d(Pair kernel, const MaxPool2dOptions& options = {})
      : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) override;

  Pair kernel;               ///< {height, width}
  MaxPool2dOptions options;  ///< as given
};

/// What avg_pool2d() takes beside tensors.
struct AvgPool2dOptions {
  std::optional<Pair> stride = {};  ///< the kernel's size unless given
  Pair padding = 0;                 ///< rows and columns of zeros on each side
  bool ceil_mode = false;           ///< also a last window that reaches out at the end
  bool count_include_pad = true;    ///< do zeros of the padding count in a mean?
};

/// The mean of each window. Errors, when it is called: those of avg_pool2d().
class AvgPool2d : public Module {
 public:
  /// `kernel`: the window's size.
  explicit AvgPool2d(Pair kernel, const AvgPool2dOptions& options = {})
      : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) override;

  Pair kernel;               ///< {height, width}
  AvgPool2dOptions options;  ///< as given
};

/// Means of windows that cut an image into `output_size` pieces: adaptive_avg_pool2d().
class AdaptiveAvgPool2d : public Module {
 public:
  /// {height, width} of the output; 1: the mean of the image.
  explicit AdaptiveAvgPool2d(Pair output_size) : output_size(output_size) {}
  Tensor forward(const Tensor& x) override;

  Pair output_size;  ///< as given
};

}  // namespace quern::nn
