#include "ops/op_cases.h"

#include "quern/nn/safetensors.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/avg_pool2d.h"
#include "quern/ops/batch_norm.h"
#include "quern/ops/binary.h"
#include "quern/ops/cat.h"
#include "quern/ops/compare.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/convert.h"
#include "quern/ops/dropout.h"
#include "quern/ops/embedding.h"
#include "quern/ops/embedding_bag.h"
#include "quern/ops/expand.h"
#include "quern/ops/flatten.h"
#include "quern/ops/fused/conv_chain.h"
#include "quern/ops/layer_norm.h"
#include "quern/ops/linear.h"
#include "quern/ops/loss.h"
#include "quern/ops/matmul.h"
#include "quern/ops/max.h"
#include "quern/ops/max_pool2d.h"
#include "quern/ops/pad.h"
#include "quern/ops/permute.h"
#include "quern/ops/reshape.h"
#include "quern/ops/slice.h"
#include "quern/ops/softmax.h"
#include "quern/ops/sum.h"
#include "quern/ops/topk.h"
#include "quern/ops/unary.h"

namespace quern::test {
namespace {

constexpr bool kView = true;

/// torch.linspace(first, last, 5), in what statistics of x are kept in.
Tensor ramp(double first, double last, const Tensor& x) {
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return add(mul(arange(5, dtype), (last - first) / 4), first);
}

/// A convolution with weight in[at] and a batch norm with the two after it.
ConvStage stage(const Tensors& in, size_t at, Pair stride, Pair padding) {
  return {.weight = in[at],
          .stride = stride,
          .padding = padding,
          .running_mean = {},
          .running_var = {},
          .bn_weight = in[at + 1],
          .bn_bias = in[at + 2]};
}
Tensor identity_chain(const Tensors& in) {
  const ConvStage stages[] = {stage(in, 1, 1, 0), stage(in, 4, 1, 1)};
  return conv_chain(in[0], {.stages = stages, .shortcut = ConvChain::Shortcut::identity}, true);
}
Tensor projection_chain(const Tensors& in) {
  const ConvStage stages[] = {stage(in, 1, 2, 1)};
  return conv_chain(in[0],
                    {.stages = stages,
                     .shortcut = ConvChain::Shortcut::projection,
                     .projection = stage(in, 4, 2, 0)},
                    true);
}

// clang-format off
const std::map<std::string, OpCase> kCases{
    {"add", {[](auto& in) { return in[0] + in[1]; }}},
    {"sub", {[](auto& in) { return in[0] - in[1]; }}},
    {"mul", {[](auto& in) { return in[0] * in[1]; }}},
    {"div", {[](auto& in) { return in[0] / in[1]; }}},
    {"maximum", {[](auto& in) { return maximum(in[0], in[1]); }}},
    {"minimum", {[](auto& in) { return minimum(in[0], in[1]); }}},
    {"eq", {[](auto& in) { return where(eq(in[0], in[1]), in[0], in[2]); }}},
    {"ne", {[](auto& in) { return where(ne(in[0], in[1]), in[0], in[2]); }}},
    {"lt", {[](auto& in) { return where(lt(in[0], in[1]), in[0], in[2]); }}},
    {"le", {[](auto& in) { return where(le(in[0], 0.25), in[0], in[1]); }}},
    {"gt", {[](auto& in) { return where(gt(in[0], 0.25), in[0], in[1]); }}},
    {"ge", {[](auto& in) { return where(ge(in[0], in[1]), in[0], in[2]); }}},
    {"where", {[](auto& in) { return where(gt(in[0], in[1]), in[2], in[3]); }}},
    {"pow", {[](auto& in) { return pow(in[0], 2.5); }}},
    {"neg", {[](auto& in) { return -in[0]; }}},
    {"exp", {[](auto& in) { return exp(in[0]); }}},
    {"abs", {[](auto& in) { return abs(in[0]); }}},
    {"relu", {[](auto& in) { return relu(in[0]); }}},
    {"sigmoid", {[](auto& in) { return sigmoid(in[0]); }}},
    {"tanh", {[](auto& in) { return tanh(in[0]); }}},
    {"log", {[](auto& in) { return log(in[0]); }}},
    {"sqrt", {[](auto& in) { return sqrt(in[0]); }}},
    {"clamp", {[](auto& in) { return clamp(in[0], -0.5, 0.7); }}},
    {"gelu", {[](auto& in) { return gelu(in[0]); }}},
    {"silu", {[](auto& in) { return silu(in[0]); }}},
    {"relu6", {[](auto& in) { return relu6(in[0] * 6); }, false, 2}},
    {"hardsigmoid", {[](auto& in) { return hardsigmoid(in[0] * 3); }, false, 2}},
    {"hardswish", {[](auto& in) { return hardswish(in[0] * 3); }, false, 2}},
    {"activate", {[](auto& in) { return activate(in[0], Activation::silu); }}},
    {"leaky_relu", {[](auto& in) { return leaky_relu(in[0], 0.1); }}},
    {"sum", {[](auto& in) { return sum(in[0], {0, 2}); }}},
    {"mean", {[](auto& in) { return mean(in[0], {1}, true); }}},
    {"max", {[](auto& in) { return max(in[0], 1).values; }}},
    {"topk", {[](auto& in) { return topk(in[0], 3, 1).values; }}},
    {"softmax", {[](auto& in) { return softmax(in[0], 1); }}},
    {"log_softmax", {[](auto& in) { return log_softmax(in[0], 1); }}},
    {"cross_entropy", {[](auto& in) { return cross_entropy(in[0], in[1]); }}},
    {"cross_entropy_smooth",
     {[](auto& in) { return cross_entropy(in[0], in[1], {}, -100, Reduction::mean, 0.1); }}},
    {"nll_loss", {[](auto& in) { return nll_loss(in[0], in[1]); }}},
    {"mse_loss", {[](auto& in) { return mse_loss(in[0], in[1]); }}},
    {"matmul", {[](auto& in) { return matmul(in[0], in[1]); }}},
    {"matmul_batched", {[](auto& in) { return matmul(in[0], in[1]); }}},
    {"linear", {[](auto& in) { return linear(in[0], in[1], in[2]); }}},
    {"conv2d", {[](auto& in) { return conv2d(in[0], in[1], in[2], 1, 1); }}},
    {"conv2d_1x1", {[](auto& in) { return conv2d(in[0], in[1]); }}},
    {"conv2d_stem", {[](auto& in) { return conv2d(in[0], in[1], {}, 2, 3); }}},
    {"conv2d_stride", {[](auto& in) { return conv2d(in[0], in[1], {}, {2, 3}, {1, 2}); }}},
    {"conv2d_dilated", {[](auto& in) { return conv2d(in[0], in[1], {}, 1, 2, {2, 3}); }}},
    {"conv2d_groups", {[](auto& in) { return conv2d(in[0], in[1], {}, 1, 1, 1, 2); }}},
    {"conv2d_depthwise", {[](auto& in) { return conv2d(in[0], in[1], {}, 1, 0, 1, 5); }}},
    {"batch_norm", {[](auto& in) { return batch_norm(in[0], {}, {}, in[1], in[2], true); }}},
    {"batch_norm_eval",
     {[](auto& in) {
       return batch_norm(in[0], ramp(-1, 1, in[0]), ramp(0.5, 2.5, in[0]), in[1], in[2], false);
     }}},
    {"layer_norm", {[](auto& in) { return layer_norm(in[0], {4, 6}, in[1], in[2]); }}},
    {"max_pool2d", {[](auto& in) { return max_pool2d(in[0], 3, 2, 1); }}},
    {"max_pool2d_ceil", {[](auto& in) { return max_pool2d(in[0], 3, 2, 1, 2, true); }}},
    {"avg_pool2d", {[](auto& in) { return avg_pool2d(in[0], 3, 2, 1, true); }}},
    {"avg_pool2d_exclude",
     {[](auto& in) { return avg_pool2d(in[0], {3, 2}, Pair(2, 1), 1, false, false); }}},
    {"adaptive_avg_pool2d", {[](auto& in) { return adaptive_avg_pool2d(in[0], {3, 5}); }}},
    {"cat", {[](auto& in) { return cat(in, 1); }}},
    {"stack", {[](auto& in) { return stack(in, 1); }}},
    {"pad", {[](auto& in) { return pad(in[0], {1, 2, 0, 3}, 0.5); }}},
    {"permute", {[](auto& in) { return permute(in[0], {2, 0, 1}); }, kView}},
    {"slice", {[](auto& in) { return slice(in[0], 1, 1, 6, 2); }, kView}},
    {"embedding", {[](auto& in) { return embedding(in[0], in[1]); }}},
    {"embedding_options",
     {[](auto& in) {
       return embedding(in[0], in[1], {.padding_idx = 2, .scale_grad_by_freq = true});
     }}},
    {"embedding_bag", {[](auto& in) { return embedding_bag(in[0], in[1], in[2]); }}},
    {"embedding_bag_padding",
     {[](auto& in) { return embedding_bag(in[0], in[1], in[2], {.padding_idx = 1}); }}},
    {"embedding_bag_sum",
     {[](auto& in) {
       return embedding_bag(in[0], in[1], in[2],
                            {.mode = BagMode::sum, .per_sample_weights = in[3]});
     }}},
    {"embedding_bag_max",
     {[](auto& in) { return embedding_bag(in[0], in[1], {}, {.mode = BagMode::max}); }}},
    {"expand", {[](auto& in) { return expand(in[0], {4, 3, 5}); }, kView}},
    {"reshape", {[](auto& in) { return reshape(in[0], {6, -1}); }, kView}},
    {"flatten", {[](auto& in) { return flatten(in[0], 1); }, kView}},
    {"squeeze", {[](auto& in) { return squeeze(in[0], 1); }, kView}},
    {"unsqueeze", {[](auto& in) { return unsqueeze(in[0], 1); }, kView}},
    {"transpose", {[](auto& in) { return transpose(in[0], 0, 2); }, kView}},
    {"narrow", {[](auto& in) { return narrow(in[0], 1, 2, 3); }, kView}},
    {"select", {[](auto& in) { return select(in[0], 1, 2); }, kView}},
    {"contiguous",
     {[](auto& in) { return contiguous(in[0], MemoryFormat::channels_last); }, kView}},
    {"clone", {[](auto& in) { return clone(in[0]); }}},
    {"dropout_eval", {[](auto& in) { return dropout(in[0], 0.5, false); }, kView}},
    {"add_number", {[](auto& in) { return 1.5 + in[0]; }}},
    {"sub_number", {[](auto& in) { return 1.5 - in[0]; }}},
    {"mul_number", {[](auto& in) { return in[0] * 1.5; }}},
    {"div_number", {[](auto& in) { return 1.5 / in[0]; }}},
    {"pow_tensor", {[](auto& in) { return pow(in[0], in[1]); }}},
    {"mean_all", {[](auto& in) { return mean(in[0]); }}},
    {"conv_chain", {identity_chain, false, 5}},  // two convolutions, two norms and what joins
    {"conv_chain_projection", {projection_chain, false, 3}},
    {"sum_rows", {[](auto& in) { return sum(in[0], {1}); }}},
};
// clang-format on

}  // namespace

const std::map<std::string, OpCase>& op_cases() { return kCases; }

const TensorDict& goldens() {
  static const TensorDict all = load_safetensors(QUERN_GOLDENS "/ops.safetensors");
  return all;
}

Tensors golden_inputs(const std::string& name) {
  Tensors inputs;
  for (int i = 0; goldens().contains(fmt::format("{}.in{}", name, i)); ++i)
    inputs.push_back(goldens().at(fmt::format("{}.in{}", name, i)));
  return inputs;
}

}  // namespace quern::test
