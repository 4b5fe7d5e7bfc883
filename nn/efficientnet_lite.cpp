#include "quern/nn/efficientnet_lite.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "quern/nn/by_slab.h"
#include "quern/nn/detail/efficientnet_stages.h"
#include "quern/nn/init.h"
#include "quern/nn/linear.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/convert.h"
#include "quern/ops/flatten.h"
#include "quern/ops/pad.h"

namespace quern::nn {
namespace {

using namespace efficientnet;

/// A convolution and its norm, registered by two names through `add(name, module)`.
template <class Add>
ConvNorm conv_norm(const Add& add, const std::string& conv, const std::string& norm, int64_t inputs,
                   int64_t outputs, int64_t kernel, const Conv2dOptions& options,
                   Activation activation = Activation::relu6) {
  Conv2dOptions without_bias = options;
  without_bias.bias = false;
  Conv2d& c = add(conv, Conv2d(inputs, outputs, kernel, without_bias));
  return {&c, &add(norm, BatchNorm2d(outputs, 1e-3, 0.01)), activation, conv};
}

/// Of a kernel with stride 2: zeros around x, so that an output has the middle of its pixels.
Tensor pad_same(const Tensor& x, int64_t kernel) {
  const auto before = [&](int d) { return (kernel - 1) / 2 - (x.size(d) % 2 == 0); };
  const int64_t after = (kernel - 1) / 2;
  return pad(x, {before(3), after, before(2), after});
}

/// Zeros to give a convolution of stride 2 its padding, unless it pads itself.
int64_t own_padding(int64_t kernel, int64_t stride, bool same) {
  return same && stride == 2 ? 0 : (kernel - 1) / 2;
}

class Block : public Module {
 public:
  Block(int64_t inputs, const Stage& stage, int64_t stride, bool fuse, bool same)
      : kernel_(stage.kernel), pads_(same && stride == 2) {
    const auto add = [this]<class M>(const std::string& name, M module) -> M& {
      return register_module(name, std::move(module));
    };
    const int64_t inner = inputs * stage.expansion;
    const bool expands = stage.expansion != 1;
    if (expands)
      (pads_ ? before_ : rest_).branch = {conv_norm(add, "conv_pw", "bn1", inputs, inner, 1, {})};
    rest_.branch.push_back(conv_norm(
        add, "conv_dw", expands ? "bn2" : "bn1", inner, inner, stage.kernel,
        {.stride = stride, .padding = own_padding(stage.kernel, stride, same), .groups = inner}));
    rest_.branch.push_back(conv_norm(add, expands ? "conv_pwl" : "conv_pw", expands ? "bn3" : "bn2",
                                     inner, stage.outputs, 1, {}, Activation::none));
    before_.shortcut = false;
    rest_.shortcut = stride == 1 && inputs == stage.outputs;
    before_.fuse = rest_.fuse = fuse;
  }
  Tensor forward(const Tensor& x) override {
    return rest_(pads_ ? pad_same(before_(x), kernel_) : x);
  }

 private:
  int64_t kernel_;
  bool pads_;
  Residual before_, rest_;
};

Sequential blocks(const EfficientNetLiteOptions& options) {
  Sequential stages;
  int64_t inputs = kStem;
  for (const Stage& stage : kStages) {
    Sequential& all = stages.add(Sequential());
    for (int64_t i = 0; i < stage.depth; ++i) {
      all.add(Block(inputs, stage, i == 0 ? stage.stride : 1, options.fuse, options.same_padding));
      inputs = stage.outputs;
    }
  }
  return stages;
}

}  // namespace

EfficientNetLite::EfficientNetLite(const EfficientNetLiteOptions& options)
    : same_padding_(options.same_padding) {
  const auto add = [this]<class M>(const std::string& name, M module) -> M& {
    return register_module(name, std::move(module));
  };
  stem_ = {.branch = {conv_norm(add, "conv_stem", "bn1", 3, kStem, 3,
                                {.stride = 2, .padding = own_padding(3, 2, same_padding_)})},
           .shortcut = false,
           .fuse = options.fuse};
  blocks_ = &add("blocks", blocks(options));
  head_ = {.branch = {conv_norm(add, "conv_head", "bn2", kStages[6].outputs, kHead, 1, {})},
           .shortcut = false,
           .fuse = options.fuse};
  dropout_ = &add("dropout", Dropout(options.dropout));
  Linear& classifier = add("classifier", Linear(kHead, options.num_classes));
  classifier_ = &classifier;

  // timm's: He's normal over what a filter puts out, a group's share of it.
  for (auto& [name, module] : named_modules())
    if (auto* c = dynamic_cast<Conv2d*>(module)) {
      const auto fan = static_cast<double>(init::fans(c->weight).out / c->options.groups);
      init::normal_(c->weight, 0, std::sqrt(2 / fan));
    }
  const double bound = 1 / std::sqrt(static_cast<double>(options.num_classes));
  init::uniform_(classifier.weight, -bound, bound);
  init::constant_(classifier.bias, 0);
}

Tensor EfficientNetLite::forward(const Tensor& x) {
  return by_slab(*this, x, 24, [&](const Tensor& images) {
    const bool image = images.defined() && images.dim() == 4;
    Tensor y = image ? contiguous(images, MemoryFormat::channels_last) : images;
    if (image && same_padding_) y = pad_same(y, 3);
    y = head_((*blocks_)(stem_(y)));
    return (*classifier_)((*dropout_)(flatten(adaptive_avg_pool2d(y, 1), 1)));
  });
}

TensorDict efficientnet_lite_names(const TensorDict& dict) {
  std::map<std::string, std::string> renamed{{"_conv_stem", "conv_stem"},
                                             {"_bn0", "bn1"},
                                             {"_conv_head", "conv_head"},
                                             {"_bn1", "bn2"},
                                             {"_fc", "classifier"}};
  int64_t index = 0, number = 0;
  for (const Stage& stage : kStages) {
    for (int64_t i = 0; i < stage.depth; ++i, ++index) {
      const auto block = [&, i](const char* theirs, const char* ours) {
        renamed[fmt::format("_blocks.{}.{}", index, theirs)] =
            fmt::format("blocks.{}.{}.{}", number, i, ours);
      };
      const bool expands = stage.expansion != 1;
      block("_expand_conv", "conv_pw"), block("_bn0", "bn1");
      block("_depthwise_conv", "conv_dw"), block("_bn1", expands ? "bn2" : "bn1");
      block("_project_conv", expands ? "conv_pwl" : "conv_pw");
      block("_bn2", expands ? "bn3" : "bn2");
    }
    ++number;
  }
  TensorDict result;
  for (const auto& [name, tensor] : dict) {
    const size_t dot = name.rfind('.');
    const auto found = renamed.find(name.substr(0, dot));
    result.insert(found == renamed.end() ? name : found->second + name.substr(dot), tensor);
  }
  return result;
}

}  // namespace quern::nn
