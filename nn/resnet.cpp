#include "quern/nn/resnet.h"

#include <algorithm>

#include "quern/nn/by_slab.h"
#include "quern/nn/init.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/convert.h"
#include "quern/ops/flatten.h"
#include "quern/ops/max_pool2d.h"

namespace quern::nn {
namespace {

Conv2d conv(int64_t inputs, int64_t outputs, int64_t kernel, int64_t stride = 1,
            int64_t groups = 1) {
  return Conv2d(inputs, outputs, kernel,
                {.stride = stride, .padding = kernel / 2, .groups = groups, .bias = false});
}

/// A branch of convolutions, added to its input or, where the shape changes, to a 1×1 projection.
class ResidualBlock : public Module {
 public:
  Tensor forward(const Tensor& x) override { return residual_(x); }

 protected:
  explicit ResidualBlock(bool fuse) { residual_.fuse = fuse; }
  /// "conv1" and "bn1", "conv2" and "bn2", ...
  void add(Conv2d module, int64_t outputs) {
    const size_t i = residual_.branch.size() + 1;
    Conv2d& c = register_module(fmt::format("conv{}", i), std::move(module));
    residual_.branch.push_back(
        {.conv = &c,
         .norm = &register_module(fmt::format("bn{}", i), BatchNorm2d(outputs)),
         .name = c.name()});
  }
  void project(int64_t inputs, int64_t outputs, int64_t stride) {
    if (stride == 1 && inputs == outputs) return;
    Sequential& modules = register_module("downsample", Sequential());
    Conv2d& c = modules.add(conv(inputs, outputs, 1, stride));
    residual_.projection = {
        .conv = &c, .norm = &modules.add(BatchNorm2d(outputs)), .name = "downsample.0"};
  }

 private:
  Residual residual_;
};

struct BasicBlock : ResidualBlock {
  static constexpr int64_t kExpansion = 1;

  BasicBlock(int64_t inputs, int64_t width, int64_t stride, const ResNetOptions& options)
      : ResidualBlock(options.fuse) {
    add(conv(inputs, width, 3, stride), width);
    add(conv(width, width, 3), width);
    project(inputs, width, stride);
  }
};

struct Bottleneck : ResidualBlock {
  static constexpr int64_t kExpansion = 4;

  Bottleneck(int64_t inputs, int64_t width, int64_t stride, const ResNetOptions& options)
      : ResidualBlock(options.fuse) {
    const int64_t inner = width * options.width_per_group / 64 * options.groups;
    add(conv(inputs, inner, 1), inner);
    add(conv(inner, inner, 3, stride, options.groups), inner);
    add(conv(inner, width * kExpansion, 1), width * kExpansion);
    project(inputs, width * kExpansion, stride);
  }
};

int64_t expansion(ResNet::Block block) {
  return block == ResNet::Block::basic ? BasicBlock::kExpansion : Bottleneck::kExpansion;
}

/// `depth` blocks, the first with the stride and the change of channels.
Sequential stage(ResNet::Block block, int64_t inputs, int64_t width, int depth, int64_t stride,
                 const ResNetOptions& options) {
  Sequential blocks;
  for (int i = 0; i < depth; ++i) {
    if (block == ResNet::Block::basic) blocks.add(BasicBlock(inputs, width, stride, options));
    else blocks.add(Bottleneck(inputs, width, stride, options));
    inputs = width * expansion(block);
    stride = 1;
  }
  return blocks;
}

}  // namespace

ResNet::ResNet(Block block, const std::array<int, 4>& depths, const ResNetOptions& options)
    : conv1_(register_module("conv1", conv(3, 64, 7, 2))),
      bn1_(register_module("bn1", BatchNorm2d(64))),
      stem_{.branch = {{.conv = &conv1_, .norm = &bn1_, .name = conv1_.name()}},
            .shortcut = false,
            .fuse = options.fuse},
      layer1_(register_module("layer1", stage(block, 64, 64, depths[0], 1, options))),
      layer2_(register_module("layer2",
                              stage(block, 64 * expansion(block), 128, depths[1], 2, options))),
      layer3_(register_module("layer3",
                              stage(block, 128 * expansion(block), 256, depths[2], 2, options))),
      layer4_(register_module("layer4",
                              stage(block, 256 * expansion(block), 512, depths[3], 2, options))),
      fc_(register_module("fc", Linear(512 * expansion(block), options.num_classes))) {
  for (auto& [name, module] : named_modules()) {
    if (auto* c = dynamic_cast<Conv2d*>(module))
      init::kaiming_normal_(c->weight,
                            {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu});
    bool ends_branch = name.ends_with(block == Block::basic ? ".bn2" : ".bn3");
    if (options.zero_init_residual && ends_branch)
      init::constant_(static_cast<BatchNorm2d&>(*module).weight, 0);
  }
}

Tensor ResNet::forward(const Tensor& x) {
  // The stem's and layer1's are the largest activations: 64 channels of a quarter of the pixels.
  return by_slab(*this, x, 16, [&](const Tensor& images) {
    // Fused chains compute in channels_last: better three channels are reordered than each block's.
    const bool reorder = stem_.fuse && images.defined() && images.dim() == 4;
    const Tensor stem = stem_(reorder ? contiguous(images, MemoryFormat::channels_last) : images);
    const Tensor y = layer4_(layer3_(layer2_(layer1_(max_pool2d(stem, 3, 2, 1)))));
    return fc_(flatten(adaptive_avg_pool2d(y, 1), 1));
  });
}

namespace {

struct Variant {
  std::string_view name;
  ResNet::Block block;
  std::array<int, 4> depths;
};
constexpr Variant kVariants[] = {
    {"resnet18", ResNet::Block::basic, {2, 2, 2, 2}},
    {"resnet34", ResNet::Block::basic, {3, 4, 6, 3}},
    {"resnet50", ResNet::Block::bottleneck, {3, 4, 6, 3}},
    {"resnet101", ResNet::Block::bottleneck, {3, 4, 23, 3}},
    {"resnet152", ResNet::Block::bottleneck, {3, 8, 36, 3}},
};

}  // namespace

ResNet resnext50_32x4d(const ResNetOptions& options) {
  ResNetOptions with_groups = options;
  with_groups.groups = 32, with_groups.width_per_group = 4;
  return resnet50(with_groups);
}
ResNet resnet(std::string_view name, const ResNetOptions& options) {
  for (const Variant& variant : kVariants)
    if (variant.name == name) return ResNet(variant.block, variant.depths, options);
  fail("resnet", fmt::format("name: expected resnet18, 34, 50, 101 or 152, got \"{}\"", name));
}
ResNet resnet18(const ResNetOptions& options) { return resnet("resnet18", options); }
ResNet resnet34(const ResNetOptions& options) { return resnet("resnet34", options); }
ResNet resnet50(const ResNetOptions& options) { return resnet("resnet50", options); }
ResNet resnet101(const ResNetOptions& options) { return resnet("resnet101", options); }
ResNet resnet152(const ResNetOptions& options) { return resnet("resnet152", options); }

}  // namespace quern::nn
