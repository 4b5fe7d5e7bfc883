// A net that has of everything: a stem, a block with a projection, a pool and a head.
#pragma once
#include "quern/nn/nn.h"
#include "quern/nn/residual.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/flatten.h"
#include "quern/ops/max_pool2d.h"
#include "quern/tensor/random.h"

namespace quern::test {

struct Net : nn::Module {
  nn::Conv2d& conv = register_module("conv", nn::Conv2d(3, 8, 3, {.padding = 1, .bias = false}));
  nn::BatchNorm2d& norm = register_module("norm", nn::BatchNorm2d(8));
  nn::Conv2d& conv1 = register_module("conv1", nn::Conv2d(8, 16, 3, {.padding = 1, .bias = false}));
  nn::BatchNorm2d& norm1 = register_module("norm1", nn::BatchNorm2d(16));
  nn::Conv2d& side = register_module("side", nn::Conv2d(8, 16, 1, {.bias = false}));
  nn::BatchNorm2d& side_norm = register_module("side_norm", nn::BatchNorm2d(16));
  nn::Linear& wide = register_module("wide", nn::Linear(16, 64));
  nn::Linear& head = register_module("head", nn::Linear(64, 5));
  nn::Residual stem{.branch = {{&conv, &norm}}, .shortcut = false};
  nn::Residual block{.branch = {{&conv1, &norm1}}, .projection = nn::ConvNorm{&side, &side_norm}};

  /// The initial weights follow from the seed.
  explicit Net(uint64_t seed, bool fuse = true) {
    stem.fuse = block.fuse = fuse;
    Generator generator(seed);
    for (const Tensor& p : parameters()) uniform_(p.detach(), -0.3, 0.3, generator);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = adaptive_avg_pool2d(block(max_pool2d(stem(x), 2)), 1);
    return head(relu(wide(flatten(y, 1))));
  }
};

/// Images for it, told by the seed.
inline Tensor images(uint64_t seed, MemoryFormat format = MemoryFormat::channels_last) {
  Tensor x = empty({4, 3, 16, 16}, DType::f32, format);
  Generator generator(seed);
  normal_(x, 0, 1, generator);
  return x;
}

}  // namespace quern::test
