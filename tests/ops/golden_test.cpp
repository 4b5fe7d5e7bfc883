// Every op and its gradients against PyTorch: tests/pytorch/make_goldens.py holds the same cases by name.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>

#include "gradcheck_helper.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/activation.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/avg_pool2d.h"
#include "quern/ops/batch_norm.h"
#include "quern/ops/binary.h"
#include "quern/ops/cat.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/embedding.h"
#include "quern/ops/layer_norm.h"
#include "quern/ops/linear.h"
#include "quern/ops/loss.h"
#include "quern/ops/matmul.h"
#include "quern/ops/max.h"
#include "quern/ops/max_pool2d.h"
#include "quern/ops/pad.h"
#include "quern/ops/permute.h"
#include "quern/ops/slice.h"
#include "quern/ops/softmax.h"
#include "quern/ops/sum.h"
#include "quern/ops/topk.h"
#include "quern/ops/unary.h"

namespace quern {
namespace {

using Case = std::function<Tensor(const Tensors&)>;

Tensor ramp(double first, double last) {  // torch.linspace(first, last, 5)
  return add(mul(arange(5, DType::f32), (last - first) / 4), first);
}

// clang-format off
const std::map<std::string, Case> kCases{
    {"add", [](auto& in) { return in[0] + in[1]; }},
    {"sub", [](auto& in) { return in[0] - in[1]; }},
    {"mul", [](auto& in) { return in[0] * in[1]; }},
    {"div", [](auto& in) { return in[0] / in[1]; }},
    {"maximum", [](auto& in) { return maximum(in[0], in[1]); }},
    {"pow", [](auto& in) { return pow(in[0], 2.5); }},
    {"neg", [](auto& in) { return -in[0]; }},
    {"exp", [](auto& in) { return exp(in[0]); }},
    {"abs", [](auto& in) { return abs(in[0]); }},
    {"relu", [](auto& in) { return relu(in[0]); }},
    {"sigmoid", [](auto& in) { return sigmoid(in[0]); }},
    {"tanh", [](auto& in) { return tanh(in[0]); }},
    {"log", [](auto& in) { return log(in[0]); }},
    {"sqrt", [](auto& in) { return sqrt(in[0]); }},
    {"clamp", [](auto& in) { return clamp(in[0], -0.5, 0.7); }},
    {"gelu", [](auto& in) { return gelu(in[0]); }},
    {"silu", [](auto& in) { return silu(in[0]); }},
    {"sum", [](auto& in) { return sum(in[0], {0, 2}); }},
    {"mean", [](auto& in) { return mean(in[0], {1}, true); }},
    {"max", [](auto& in) { return max(in[0], 1).values; }},
    {"topk", [](auto& in) { return topk(in[0], 3, 1).values; }},
    {"softmax", [](auto& in) { return softmax(in[0], 1); }},
    {"log_softmax", [](auto& in) { return log_softmax(in[0], 1); }},
    {"cross_entropy", [](auto& in) { return cross_entropy(in[0], in[1]); }},
    {"cross_entropy_smooth", [](auto& in) { return cross_entropy(in[0], in[1], {}, -100, Reduction::mean, 0.1); }},
    {"nll_loss", [](auto& in) { return nll_loss(in[0], in[1]); }},
    {"mse_loss", [](auto& in) { return mse_loss(in[0], in[1]); }},
    {"matmul", [](auto& in) { return matmul(in[0], in[1]); }},
    {"matmul_batched", [](auto& in) { return matmul(in[0], in[1]); }},
    {"linear", [](auto& in) { return linear(in[0], in[1], in[2]); }},
    {"conv2d", [](auto& in) { return conv2d(in[0], in[1], in[2], 1, 1); }},
    {"conv2d_1x1", [](auto& in) { return conv2d(in[0], in[1]); }},
    {"conv2d_stem", [](auto& in) { return conv2d(in[0], in[1], {}, 2, 3); }},
    {"conv2d_stride", [](auto& in) { return conv2d(in[0], in[1], {}, {2, 3}, {1, 2}); }},
    {"conv2d_dilated", [](auto& in) { return conv2d(in[0], in[1], {}, 1, 2, {2, 3}); }},
    {"conv2d_groups", [](auto& in) { return conv2d(in[0], in[1], {}, 1, 1, 1, 2); }},
    {"conv2d_depthwise", [](auto& in) { return conv2d(in[0], in[1], {}, 1, 0, 1, 5); }},
    {"batch_norm", [](auto& in) { return batch_norm(in[0], {}, {}, in[1], in[2], true); }},
    {"batch_norm_eval", [](auto& in) { return batch_norm(in[0], ramp(-1, 1), ramp(0.5, 2.5), in[1], in[2], false); }},
    {"layer_norm", [](auto& in) { return layer_norm(in[0], {4, 6}, in[1], in[2]); }},
    {"max_pool2d", [](auto& in) { return max_pool2d(in[0], 3, 2, 1); }},
    {"max_pool2d_ceil", [](auto& in) { return max_pool2d(in[0], 3, 2, 1, 2, true); }},
    {"avg_pool2d", [](auto& in) { return avg_pool2d(in[0], 3, 2, 1, true); }},
    {"avg_pool2d_exclude", [](auto& in) { return avg_pool2d(in[0], {3, 2}, Pair(2, 1), 1, false, false); }},
    {"adaptive_avg_pool2d", [](auto& in) { return adaptive_avg_pool2d(in[0], {3, 5}); }},
    {"cat", [](auto& in) { return cat(in, 1); }},
    {"stack", [](auto& in) { return stack(in, 1); }},
    {"pad", [](auto& in) { return pad(in[0], {1, 2, 0, 3}, 0.5); }},
    {"permute", [](auto& in) { return permute(in[0], {2, 0, 1}); }},
    {"slice", [](auto& in) { return slice(in[0], 1, 1, 6, 2); }},
    {"embedding", [](auto& in) { return embedding(in[0], in[1]); }},
};
// clang-format on

// The goldens are PyTorch's f64 results of f32 inputs, rounded to f32; ours are computed in f32. The sums
// behind an element have at most 147 terms (the stem's), and elementary functions are within 1 ulp
// (u = 2^-24): by norm, where rounding errors don't all align, 2e-6 = 34u covers √147·u and a few ulp.
void check_case(const std::string& name, const Case& f, MemoryFormat format) {
  CAPTURE(name);
  CAPTURE(to_string(format));
  static const TensorDict goldens = load_safetensors(QUERN_GOLDENS "/ops.safetensors");
  Tensors inputs;
  for (int i = 0; goldens.contains(name + ".in" + std::to_string(i)); ++i) {
    const Tensor& in = goldens.at(name + ".in" + std::to_string(i));
    inputs.push_back(raw::clone(in.dim() == 4 ? raw::contiguous(in, format) : in));
    if (is_floating(in.dtype())) inputs.back().requires_grad_();
  }
  REQUIRE(!inputs.empty());
  const Tensor out = f(inputs);
  CHECK(test::relative_difference(out, goldens.at(name + ".out")) < 2e-6);
  out.backward(goldens.at(name + ".dout"));
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].requires_grad())
      CHECK(test::relative_difference(inputs[i].grad(),
                                      goldens.at(name + ".grad" + std::to_string(i))) < 2e-6);
}

TEST_CASE("ops and their gradients agree with PyTorch") {
  for (const auto& [name, f] : kCases) {
    check_case(name, f, MemoryFormat::contiguous);
    if (name.find("2d") != name.npos || name.find("norm") != name.npos)
      check_case(name, f, MemoryFormat::channels_last);
  }
}

TEST_CASE("every golden has a case") {
  for (const auto& [name, t] : load_safetensors(QUERN_GOLDENS "/ops.safetensors"))
    CHECK_MESSAGE(kCases.contains(name.substr(0, name.find('.'))), name);
}

}  // namespace
}  // namespace quern
