// Pools: torch.nn.MaxPool2d, AvgPool2d, AdaptiveAvgPool2d. Inputs [N, C, H, W]; the format is kept.
#pragma once
#include <optional>

#include "quern/nn/module.h"
#include "quern/tensor/pair.h"

namespace quern::nn {

struct MaxPool2dOptions {
  std::optional<Pair> stride = {};  ///< the kernel's size unless given
  Pair padding = 0;
  Pair dilation = 1;
  bool ceil_mode = false;
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(Pair kernel, const MaxPool2dOptions& options = {})
      : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) override;

  Pair kernel;
  MaxPool2dOptions options;
};

struct AvgPool2dOptions {
  std::optional<Pair> stride = {};  ///< the kernel's size unless given
  Pair padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(Pair kernel, const AvgPool2dOptions& options = {})
      : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) override;

  Pair kernel;
  AvgPool2dOptions options;
};

class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Pair output_size) : output_size(output_size) {}
  Tensor forward(const Tensor& x) override;

  Pair output_size;
};

}  // namespace quern::nn
