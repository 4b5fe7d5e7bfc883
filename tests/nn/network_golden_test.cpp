// Each network beside ResNets against PyTorch in f64: names, logits, gradients and running
// statistics. tests/pytorch/make_goldens.py is the other half.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "nn/golden_recipe.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/convnext.h"
#include "quern/nn/efficientnet.h"
#include "quern/nn/efficientnet_lite.h"
#include "quern/nn/mobilenet_v3.h"
#include "quern/nn/network.h"
#include "quern/nn/resnet.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/ops/loss.h"
#include "quern/tensor/raw.h"

namespace quern::test {
namespace {

const TensorDict& goldens() {
  static const TensorDict dict = load_safetensors(QUERN_GOLDENS "/networks.safetensors");
  return dict;
}

/// With 10 classes, and nothing that is drawn.
std::unique_ptr<nn::Module> make(std::string_view name, bool fuse) {
  if (name == "mobilenet_v2")
    return std::make_unique<nn::MobileNetV2>(
        nn::MobileNetOptions{.num_classes = 10, .dropout = 0, .fuse = fuse});
  if (name == "mobilenet_v3_large")
    return std::make_unique<nn::MobileNetV3>(
        nn::MobileNetOptions{.num_classes = 10, .dropout = 0, .fuse = fuse});
  if (name == "efficientnet_b0")
    return std::make_unique<nn::EfficientNet>(nn::EfficientNetOptions{
        .num_classes = 10, .dropout = 0, .stochastic_depth = 0, .fuse = fuse});
  if (name == "efficientnet_lite0")
    return std::make_unique<nn::EfficientNetLite>(
        nn::EfficientNetLiteOptions{.num_classes = 10, .dropout = 0, .fuse = fuse});
  if (name == "resnext50_32x4d")
    return std::make_unique<nn::ResNet>(nn::resnext50_32x4d({.num_classes = 10, .fuse = fuse}));
  return std::make_unique<nn::ConvNeXt>(
      nn::ConvNeXtOptions{.num_classes = 10, .stochastic_depth = 0});
}

/// FNV-1a of "name [sizes]" lines.
int64_t names_digest(const TensorDict& state) {
  uint64_t h = 0xcbf29ce484222325;
  for (const auto& [name, t] : state)
    for (const char byte : fmt::format("{} {}\n", name, t.shape()))
      h = (h ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return static_cast<int64_t>(h);
}

struct Run {
  Values eval, train;
  std::vector<Digest> grads, buffers;
};

Run run(std::string_view name, bool amp, MemoryFormat format, bool fuse) {
  const auto model = make(name, fuse);
  CHECK_EQ(names_digest(model->state_dict()),
           goldens().at(fmt::format("{}.names", name)).item<int64_t>());
  uint64_t stream = 0;
  for (const TensorDict& tensors : {model->named_parameters(), model->named_buffers()})
    for (const auto& [tensor_name, t] : tensors)
      if (is_floating(t.dtype())) raw::copy_(t, recipe_tensor(tensor_name, t.shape(), stream++));
  const auto bound = static_cast<float>(std::sqrt(3.0));
  const auto input =
      static_cast<uint64_t>(goldens().at(fmt::format("{}.stream", name)).item<int64_t>());
  const Tensor x = raw::contiguous(uniform({2, 3, 64, 64}, input, -bound, bound), format);
  const AutocastGuard autocast(amp);
  Run run;
  {
    const NoGradGuard no_grad;
    model->eval();
    run.eval = (*model)(x).to_vector<double>();
  }
  model->train();
  const Tensor logits = (*model)(x);
  cross_entropy(logits, from_vector<int64_t>({0, 1})).backward();
  run.train = logits.to_vector<double>();
  TensorDict grads;
  for (const auto& [parameter, p] : model->named_parameters()) grads.insert(parameter, p.grad());
  run.grads = digests(grads);
  run.buffers = digests(model->named_buffers());
  return run;
}

/// A relative distance a row: of logits, or of a tensor's projections, which follow its norm.
Values distances(const Values& mine, const Tensor& golden) {
  const auto columns = static_cast<size_t>(golden.size(1));
  const Values expected = golden.to_vector<double>();
  Values result;
  for (size_t i = 0; i < mine.size(); i += columns)
    result.push_back(relative(&mine[i], &expected[i], columns));
  return result;
}
/// Relative to no less than `least` of the largest tensor.
Values distances(const std::vector<Digest>& mine, const Tensor& golden, double least) {
  REQUIRE(golden.size(0) == static_cast<int64_t>(mine.size()));
  const Values expected = golden.to_vector<double>();
  const auto row = [&](size_t i) { return &expected[i * (kProjections + 1) + 1]; };
  Values sizes, result;
  for (size_t i = 0; i < mine.size(); ++i)
    sizes.push_back(std::sqrt(std::inner_product(row(i), row(i) + kProjections, row(i), 0.0)));
  for (size_t i = 0; i < mine.size(); ++i)
    result.push_back(relative(mine[i].data(), row(i), kProjections) * sizes[i] /
                     std::max(sizes[i], least * worst(sizes)));
  return result;
}

/// check(quantity, my distances, PyTorch's)
template <class Check>
void compare(const std::string& name, const Run& run, const char* kind, Check check) {
  const auto each = [&](const std::string& quantity, const auto& mine, auto... least) {
    const Tensor* golden = goldens().find(name + "." + quantity);
    if (!golden) {  // no batch norms
      CHECK(mine.empty());
      return;
    }
    const Values theirs =
        goldens().at(fmt::format("{}.pytorch_{}.{}", name, kind, quantity)).to_vector<double>();
    const Values distance = distances(mine, *golden, least...);
    REQUIRE_EQ(distance.size(), theirs.size());
    CAPTURE(quantity);
    MESSAGE(name << " " << kind << ", " << quantity << ": worst " << worst(distance) << ", median "
                 << median(distance) << "; PyTorch: worst " << worst(theirs) << ", median "
                 << median(theirs));
    check(quantity, distance, theirs);
  };
  each("eval", run.eval), each("train", run.train);
  // A gradient that is 0 but for rounding has no relative difference.
  each("grads", run.grads, 1e-3), each("buffers", run.buffers, 0.0);
}

const char* const kNames[] = {"mobilenet_v2",       "mobilenet_v3_large", "efficientnet_b0",
                              "efficientnet_lite0", "resnext50_32x4d",    "convnext_tiny"};

/// Both formats, fused and op by op.
template <class F>
void each_way(F f) {
  for (const char* name : kNames) {
    CAPTURE(std::string(name));
    f(name, MemoryFormat::channels_last, true);
    f(name, MemoryFormat::contiguous, false);
  }
}

// The batch norms of two images at 2×2 pixels, and masks, make much of little: networks are held to
// how far PyTorch's own f32 is.
TEST_CASE("networks in f32 are as close to f64 as PyTorch's") {
  each_way([](const std::string& name, MemoryFormat format, bool fuse) {
    compare(name, run(name, false, format, fuse), "f32",
            [](const std::string&, const Values& mine, const Values& theirs) {
              CHECK(median(mine) < 3 * median(theirs) + 1e-6);
              CHECK(worst(mine) < 5 * worst(theirs) + 1e-6);
            });
  });
}

// As of resnet50: autocast's roundings flip masks and cancel, for PyTorch as for us.
TEST_CASE("networks in bf16 autocast are as close to f64 as PyTorch's") {
  each_way([](const std::string& name, MemoryFormat format, bool fuse) {
    compare(name, run(name, true, format, fuse), "bf16",
            [](const std::string&, const Values& mine, const Values& theirs) {
              if (mine.size() > 2) CHECK(median(mine) < 1.5 * median(theirs));
              CHECK(worst(mine) < 3 * worst(theirs));
            });
  });
}

TEST_CASE("networks by name") {
  for (const std::string_view name : nn::network_names())
    CHECK_EQ(nn::network(name, {.num_classes = 3})->parameters().back().size(0), 3);
  CHECK_THROWS_AS(nn::network("resnet51"), Error);
}

}  // namespace
}  // namespace quern::test
