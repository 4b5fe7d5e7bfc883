// The chains of ResNets that the tests of conv_chain in training share.
#pragma once
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "gradcheck_helper.h"
#include "quern/ops/activation.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/detail/conv_stage.h"
#include "quern/ops/fused/conv_chain.h"

namespace quern::test {

using Shortcut = ConvChain::Shortcut;
inline constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

struct Convolution {
  int64_t outputs, kernel, stride, groups = 1;
  Activation activation = Activation::relu;
};

/// One of the chains of a ResNet or a MobileNet, on an input of an odd size.
struct Case {
  const char* name;
  Shape input;
  std::vector<Convolution> branch;
  Shortcut shortcut;
  std::optional<size_t> gate = {};  // the stage that has one
};
inline const std::vector<Case> kCases{
    {"stem", {2, 2, 9, 11}, {{5, 7, 2}}, Shortcut::none},
    {"basic", {2, 7, 9, 5}, {{5, 3, 1}, {7, 3, 1}}, Shortcut::identity},
    {"basic, strided", {2, 7, 9, 6}, {{10, 3, 2}, {10, 3, 1}}, Shortcut::projection},
    {"bottleneck", {2, 12, 5, 7}, {{3, 1, 1}, {3, 3, 1}, {12, 1, 1}}, Shortcut::identity},
    {"bottleneck, strided", {3, 6, 7, 8}, {{4, 1, 1}, {5, 3, 2}, {9, 1, 1}}, Shortcut::projection},
    {"inverted residual",
     {2, 8, 7, 6},
     {{20, 1, 1, 1, Activation::relu6},
      {20, 3, 1, 20, Activation::relu6},
      {8, 1, 1, 1, Activation::none}},
     Shortcut::identity},
    {"strided, silu",
     {2, 6, 9, 8},
     {{18, 1, 1, 1, Activation::silu}, {18, 5, 2, 18, Activation::silu}},
     Shortcut::none},
    {"groups, hardswish",
     {2, 8, 7, 5},
     {{16, 1, 1, 1, Activation::hardswish},
      {16, 3, 1, 4, Activation::hardswish},
      {10, 1, 1, 1, Activation::none}},
     Shortcut::none},
    {"silu of a sum", {2, 6, 5, 7}, {{6, 3, 1, 1, Activation::silu}}, Shortcut::identity},
    {"gate of silu, strided",
     {3, 6, 9, 8},
     {{18, 1, 1, 1, Activation::silu}, {18, 5, 2, 18, Activation::silu}},
     Shortcut::none,
     1},
    {"gate of relu", {2, 6, 5, 7}, {{7, 3, 1, 1, Activation::relu}}, Shortcut::none, 0},
    {"gate of a norm", {2, 8, 5, 4}, {{12, 3, 1, 4, Activation::none}}, Shortcut::none, 0},
    {"inverted residual with a gate",
     {2, 8, 9, 6},
     {{20, 1, 1, 1, Activation::silu},
      {20, 3, 1, 20, Activation::silu},
      {8, 1, 1, 1, Activation::none}},
     Shortcut::identity,
     1},
    {"gate on few pixels, projection",
     {3, 6, 5, 4},
     {{10, 3, 2, 1, Activation::hardswish}, {12, 3, 1, 1, Activation::relu}},
     Shortcut::projection,
     0},
};

/// The tensors of a chain, leaves that require a gradient: the same values, rounded to bf16, in any
/// dtype; others a draw.
struct Chain {
  Chain(const Case& c, DType dtype, MemoryFormat format, uint64_t draw = 0)
      : shortcut(c.shortcut),
        dtype(dtype),
        seed(1 + 1000 * draw),
        x(tensor(c.input, -1, 2, format)) {
    int64_t channels = c.input[1], stride = 1;
    for (const Convolution& conv : c.branch) {
      stages.push_back(stage(channels, conv));
      channels = conv.outputs;
      stride *= conv.stride;
    }
    if (shortcut == Shortcut::projection) projection = stage(c.input[1], {channels, 1, stride});
    if (!c.gate) return;
    const int64_t gated = c.branch[*c.gate].outputs;
    gate_weight = tensor({gated, gated, 1, 1}, -1, 1);
    stages[*c.gate].gate = gate_by(gate_weight);
  }
  static std::function<Tensor(const Tensor&)> gate_by(const Tensor& weight) {
    return [weight](const Tensor& means) { return sigmoid(conv2d(means, weight)); };
  }
  Tensor tensor(const Shape& shape, double low, double high,
                MemoryFormat format = MemoryFormat::contiguous, bool parameter = false) {
    const Tensor rounded = random(shape, seed++, DType::bf16, format, low, high);
    const DType to = parameter && dtype == DType::bf16 ? DType::f32 : dtype;
    return raw::clone(raw::to(rounded, to));
  }
  ConvStage stage(int64_t channels, const Convolution& conv) {
    const auto parameter = [&](double low, double high) {
      return tensor({conv.outputs}, low, high, MemoryFormat::contiguous, true);
    };
    return {
        .weight = tensor({conv.outputs, channels / conv.groups, conv.kernel, conv.kernel}, -1, 1),
        .stride = conv.stride,
        .padding = conv.kernel / 2,
        .running_mean = parameter(-1, 1),
        .running_var = parameter(0.5, 2),
        .bn_weight = parameter(0.5, 1.5),
        .bn_bias = parameter(-0.5, 0.5),
        .momentum = 0.25,
        .eps = 1e-3,
        .groups = conv.groups,
        .activation = conv.activation};
  }
  ConvChain get() const {
    ConvChain chain{.stages = stages, .shortcut = shortcut};
    if (shortcut == Shortcut::projection) chain.projection = projection;
    return chain;
  }
  std::vector<const ConvStage*> all() const {
    std::vector<const ConvStage*> list;
    for (const ConvStage& s : stages) list.push_back(&s);
    if (shortcut == Shortcut::projection) list.push_back(&projection);
    return list;
  }
  Tensors leaves() const {
    Tensors list{x};
    for (const ConvStage* s : all()) list.insert(list.end(), {s->weight, s->bn_weight, s->bn_bias});
    if (gate_weight.defined()) list.push_back(gate_weight);
    return list;
  }
  Tensors running() const {
    Tensors list;
    for (const ConvStage* s : all()) list.insert(list.end(), {s->running_mean, s->running_var});
    return list;
  }
  /// Output, running statistics and the gradients of what requires one.
  template <class Way>
  Tensors run(Way way) const {
    const Tensor y = way(x, get());
    Tensors results{y.detach()};
    for (const Tensor& t : running()) results.push_back(raw::clone(t));
    if (y.requires_grad()) y.backward(random(y.shape(), 99, DType::bf16));
    for (const Tensor& t : leaves()) results.push_back(t.grad());
    return results;
  }

  Shortcut shortcut;
  DType dtype;
  uint64_t seed;
  Tensor x;
  std::vector<ConvStage> stages;
  ConvStage projection;
  Tensor gate_weight;
};

inline Tensor fused(const Tensor& x, const ConvChain& chain) { return conv_chain(x, chain, true); }
inline Tensor composed(const Tensor& x, const ConvChain& chain) {
  return detail::conv_chain_composed(x, chain, true);
}

inline Chain differentiable(const Case& c, DType dtype, MemoryFormat format, uint64_t draw = 0) {
  Chain chain(c, dtype, format, draw);
  for (Tensor& leaf : chain.leaves()) leaf.requires_grad_();
  return chain;
}

template <class F>
void each_case(F f) {
  for (const Case& c : kCases)
    for (MemoryFormat format : kFormats) {
      CAPTURE(std::string(c.name));
      CAPTURE(to_string(format));
      f(c, format);
    }
}

}  // namespace quern::test
