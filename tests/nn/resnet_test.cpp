#include "quern/nn/resnet.h"
#include "quern/tensor/cpu_features.h"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "emulated_cpu.h"
#include "gradcheck_helper.h"
#include "ops/precision_scope.h"
#include "quern/autograd/grad_mode.h"
#include "quern/nn/init.h"
#include "quern/nn/loss.h"
#include "quern/nn/safetensors.h"
#include "quern/ops/autocast.h"
#include "quern/ops/loss.h"
#include "quern/optim/sgd.h"
#include "quern/tensor/parallel.h"
#include "temporary_folder.h"
#include "tensor/run_self.h"
#include "tensor/threads.h"

using namespace quern;
using quern::testing::TemporaryFolder;

namespace {

int64_t count(const nn::Module& module) {
  int64_t total = 0;
  for (const Tensor& p : module.parameters()) total += p.numel();
  return total;
}

/// A net of the same blocks, small enough to train in a test.
nn::ResNet small(nn::ResNet::Block block, bool zero_init_residual = false) {
  return nn::ResNet(block, {1, 1, 1, 1},
                    {.num_classes = 10, .zero_init_residual = zero_init_residual});
}

}  // namespace

TEST_CASE("resnet: parameters of the five variants" * doctest::skip(test::kEmulatedCpu)) {
  CHECK(count(nn::resnet18()) == 11'689'512);
  CHECK(count(nn::resnet34()) == 21'797'672);
  CHECK(count(nn::resnet50()) == 25'557'032);
  CHECK(count(nn::resnet101()) == 44'549'160);
  CHECK(count(nn::resnet152()) == 60'192'808);
  CHECK(count(nn::resnet("resnet18", {.num_classes = 10})) == 11'689'512 - 990 * 513);
  CHECK_THROWS_WITH_AS(nn::resnet("resnet51"),
                       "[resnet] name: expected resnet18, 34, 50, 101 or 152, got \"resnet51\"",
                       Error);
}

TEST_CASE("resnet50: torchvision's names, shapes and order") {
  nn::ResNet net = nn::resnet50();
  std::vector<std::pair<std::string, Shape>> expected;
  auto conv = [&](std::string name, Shape shape) {
    expected.emplace_back(name + ".weight", shape);
  };
  auto norm = [&](std::string name, int64_t n) {
    for (const char* leaf : {".weight", ".bias", ".running_mean", ".running_var"})
      expected.emplace_back(name + leaf, Shape{n});
    expected.emplace_back(name + ".num_batches_tracked", Shape{});
  };
  conv("conv1", {64, 3, 7, 7});
  norm("bn1", 64);
  int64_t inputs = 64;
  const int depths[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage)
    for (int block = 0; block < depths[stage]; ++block) {
      std::string prefix = fmt::format("layer{}.{}.", stage + 1, block);
      int64_t width = 64 << stage;
      conv(prefix + "conv1", {width, inputs, 1, 1});
      norm(prefix + "bn1", width);
      conv(prefix + "conv2", {width, width, 3, 3});
      norm(prefix + "bn2", width);
      conv(prefix + "conv3", {4 * width, width, 1, 1});
      norm(prefix + "bn3", 4 * width);
      if (block == 0) {
        conv(prefix + "downsample.0", {4 * width, inputs, 1, 1});
        norm(prefix + "downsample.1", 4 * width);
      }
      inputs = 4 * width;
    }
  expected.emplace_back("fc.weight", Shape{1000, 2048});
  expected.emplace_back("fc.bias", Shape{1000});

  TensorDict state = net.state_dict();
  REQUIRE(state.size() == expected.size());
  size_t i = 0;
  for (const auto& [name, tensor] : state) {
    CHECK(name == expected[i].first);
    CHECK(tensor.shape() == expected[i].second);
    CHECK(tensor.dtype() == (name.ends_with("tracked") ? DType::i64 : DType::f32));
    ++i;
  }
  CHECK(net.parameters().size() == 161);

  // The stride of v1.5 is in the 3×3.
  for (auto& [name, module] : net.named_modules())
    if (auto* c = dynamic_cast<nn::Conv2d*>(module)) {
      bool strides =
          name == "conv1" || (!name.starts_with("layer1") &&
                              (name.ends_with("0.conv2") || name.ends_with("downsample.0")));
      CHECK_MESSAGE(c->options.stride == Pair(strides ? 2 : 1), name);
    }
}

TEST_CASE("resnet18: the first block of a stage projects where the shape changes") {
  nn::ResNet net = nn::resnet18();
  TensorDict state = net.state_dict();
  CHECK(!state.contains("layer1.0.downsample.0.weight"));
  CHECK(state.at("layer2.0.downsample.0.weight").shape() == Shape{128, 64, 1, 1});
  CHECK(!state.contains("layer2.1.downsample.0.weight"));
  CHECK(state.at("layer4.1.conv2.weight").shape() == Shape{512, 512, 3, 3});
}

TEST_CASE("resnet: initial values") {
  manual_seed(1);
  nn::ResNet net = small(nn::ResNet::Block::bottleneck, /*zero_init_residual=*/true);
  TensorDict state = net.state_dict();
  auto w = state.at("layer3.0.conv2.weight").to_vector<double>();
  double squares = 0;
  for (double v : w) squares += v * v;
  double n = static_cast<double>(w.size()), variance = 2.0 / (256 * 9);        // 2 / fan_out
  CHECK(std::fabs(squares / n - variance) < 5 * variance * std::sqrt(2 / n));  // five deviations
  for (const auto& [name, tensor] : state) {
    if (name.find("bn") == std::string::npos || !name.ends_with("weight")) continue;
    for (float v : tensor.to_vector<float>()) REQUIRE(v == (name.ends_with("bn3.weight") ? 0 : 1));
  }
}

TEST_CASE("resnet: logits of small images, in both formats") {
  manual_seed(2);
  for (auto block : {nn::ResNet::Block::basic, nn::ResNet::Block::bottleneck}) {
    nn::ResNet net = small(block);
    net.eval();
    NoGradGuard guard;
    Tensor x = randn({2, 3, 35, 33});
    Tensor y = net(x);
    CHECK(y.shape() == Shape{2, 10});
    // Formats and batches may differ in the order of sums: two f32 roundings in each of 16 layers.
    const double bound = 16 * 0x1p-23;
    Tensor z = net(raw::contiguous(x, MemoryFormat::channels_last));
    CHECK(test::relative_difference(z, y) < bound);
    // In inference a sample's logits do not depend on its neighbours.
    CHECK(test::relative_difference(net(raw::slice(x, 0, 1, 2)), raw::slice(y, 0, 1, 2)) < bound);
  }
  CHECK_THROWS_AS(small(nn::ResNet::Block::basic)(randn({2, 4, 32, 32})), Error);
  CHECK_THROWS_AS(small(nn::ResNet::Block::basic)(randn({0, 3, 32, 32})), Error);
}

TEST_CASE("resnet: the loss falls on one small batch") {
  for (auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    manual_seed(3);
    nn::ResNet net = small(nn::ResNet::Block::bottleneck);
    nn::CrossEntropyLoss criterion;
    Tensor x = raw::contiguous(randn({4, 3, 32, 32}), format);
    Tensor target = from_vector<int64_t>({1, 3, 5, 7});
    double first = 0, last = 0;
    for (int step = 0; step < 8; ++step) {
      net.zero_grad();
      Tensor loss = criterion(net(x), target);
      loss.backward();
      for (const auto& [name, p] : net.named_parameters()) {
        REQUIRE_MESSAGE(p.grad().defined(), name);
        Tensor grad = raw::contiguous(p.grad());
        const float* g = grad.data<float>();
        float* weight = p.mutable_data<float>();
        for (int64_t i = 0; i < p.numel(); ++i) weight[i] -= 0.02f * g[i];
      }
      (step == 0 ? first : last) = loss.item();
    }
    CHECK(first > 1.5);  // chance is ln(10) = 2.3
    CHECK(last < 0.5);
    CHECK(net.named_buffers().at("bn1.num_batches_tracked").item<int>() == 8);
  }
}

TEST_CASE("resnet: a state_dict through a file gives the same bits") {
  manual_seed(4);
  nn::ResNet a = small(nn::ResNet::Block::basic), b = small(nn::ResNet::Block::basic);
  Tensor x = randn({2, 3, 32, 32});
  NoGradGuard guard;
  a(x);  // moves the running statistics
  TemporaryFolder folder;
  save_safetensors(folder / "a.safetensors", a.state_dict());
  b.load_state_dict(load_safetensors(folder / "a.safetensors"));
  TensorDict copied = b.state_dict();
  for (const auto& [name, tensor] : a.state_dict()) {
    Tensor copy = copied.at(name);
    CHECK_MESSAGE(copy.to_vector<double>() == tensor.to_vector<double>(), name);
    CHECK(copy.storage() != tensor.storage());
  }
  a.eval();
  b.eval();
  CHECK(a(x).to_vector<float>() == b(x).to_vector<float>());
}

TEST_CASE(
    "resnet: inference gives the same logits fused and op by op, with no memory from the system") {
  for (auto block : {nn::ResNet::Block::basic, nn::ResNet::Block::bottleneck}) {
    const auto net = [&](bool fuse) {
      nn::ResNet n(block, {1, 2, 1, 1}, {.num_classes = 10, .fuse = fuse});
      n.eval();
      return n;
    };
    nn::ResNet fused = net(true), plain = net(false);
    uint64_t seed = 1;
    for (auto& [name, t] : fused.state_dict())
      if (name.ends_with("running_mean") || name.ends_with("running_var"))
        raw::copy_(t,
                   test::random(t.shape(), ++seed, DType::f32, MemoryFormat::contiguous, 0.5, 2));
    plain.load_state_dict(fused.state_dict());

    const NoGradGuard no_grad;
    const test::Threads kept(1);  // several take more or less scratch at once, as it happens
    for (auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = test::random({2, 3, 67, 45}, 3, DType::f32, format);
      // 17 layers at most, whose sums of up to 512·9 products end up √k·2⁻²⁴ apart.
      CHECK(test::relative_difference(fused(x), plain(x)) < 17 * 68 * 0x1p-24);
      for (const bool amp : {false, true}) {
        const AutocastGuard autocast(amp);
        // The first call keeps packed weights, for which it may have taken memory that was free.
        for (int call = 0; call < 2; ++call) fused(x);
        const int64_t before = memory_stats().system_allocations;
        for (int call = 0; call < 2; ++call) fused(x);
        CHECK(memory_stats().system_allocations == before);
      }
    }
  }
}

TEST_CASE("resnet: a batch evaluated in slabs has the bits of its images by themselves") {
  // 16·192·208 values of the largest activation are 2.5 MB an image in f32: at an L2 of up to 2
  // MiB, four images a slab in f32 and at most six in bf16.
  nn::ResNet net(nn::ResNet::Block::basic, {1, 1, 1, 1}, {.num_classes = 10});
  net.eval();
  const Tensor images = rand({7, 3, 191, 207});
  const NoGradGuard no_grad;
  for (const bool amp : {false, true})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      CAPTURE(amp);
      const AutocastGuard autocast(amp);
      const Tensor x = raw::contiguous(images, format);
      const auto batch = net(x).to_vector<float>();
      std::vector<float> single;
      for (int64_t i = 0; i < 7; ++i)
        for (float logit : net(raw::slice(x, 0, i, i + 1)).to_vector<float>())
          single.push_back(logit);
      CHECK(batch == single);
    }
}

TEST_CASE("resnet: a batch norm in training mode sees the whole batch, whatever the net's mode") {
  nn::ResNet net(nn::ResNet::Block::basic, {1, 1, 1, 1}, {.num_classes = 10});
  net.eval();
  for (auto& [name, module] : net.named_modules())
    if (name == "bn1") module->train();
  const NoGradGuard no_grad;
  net(rand({7, 3, 192, 208}));
  CHECK(net.named_buffers().at("bn1.num_batches_tracked").item<int>() == 1);
}

namespace {

/// Turns the network, which keeps its name, to f64.
void widen(nn::Module& net) {
  const auto to_f64 = [](auto&... tensors) { ((tensors = raw::to(tensors, DType::f64)), ...); };
  for (auto& [name, module] : net.named_modules()) {
    if (auto* c = dynamic_cast<nn::Conv2d*>(module)) to_f64(c->weight);
    if (auto* l = dynamic_cast<nn::Linear*>(module)) to_f64(l->weight, l->bias);
    if (auto* b = dynamic_cast<nn::BatchNorm2d*>(module))
      to_f64(b->weight, b->bias, b->running_mean, b->running_var);
  }
}

}  // namespace

// Each of 54 layers multiplies two rounded operands, the roundings of an rms of u/√3 with u = 2^-9,
// and batch_norm keeps each layer's scale: together √(2·54)·u/√3 = 1.2e-2. Of two terms what is
// left has an rms of u²/√3, and lo·lo is u²/3: √(54·(2/3 + 1/9))·u² = 2.5e-5. f32 rounds by 2^-24,
// sums of up to 4608 products and the batch norms some ten times as much: √54·10·2^-24 = 4.4e-6.
// Bounds are twice that. (Branches that start as large as their shortcuts make it four times as
// much.)
TEST_CASE("resnet50's logits in each precision of f32 products") {
  struct Expected {
    std::string_view precision;
    double most;
  };
  const NoGradGuard no_grad;
  for (int64_t size : {64, 224}) {
    if (test::kEmulatedCpu && size > 64) continue;
    manual_seed(1);
    nn::ResNet net = nn::resnet50(), exact = nn::resnet50();
    for (auto& [name, module] : net.named_modules())
      if (auto* b = dynamic_cast<nn::BatchNorm2d*>(module); b && name.ends_with("bn3"))
        nn::init::constant_(b->weight, 0.2);
    exact.load_state_dict(net.state_dict());
    widen(exact);
    const Tensor x =
        raw::contiguous(randn({size == 64 ? 4 : 1, 3, size, size}), MemoryFormat::channels_last);
    const Tensor logits = exact(raw::to(x, DType::f64));
    for (auto [precision, most] :
         {Expected{"highest", 8.8e-6}, {"high", 5e-5}, {"medium", 2.4e-2}}) {
      const test::Precision scope(precision, 8);  // as on AMX: no Winograd beside bf16
      const double error = test::relative_difference(net(x), logits);
      MESSAGE(size, " pixels, ", std::string(precision), ": ", error);
      CHECK(error < most);
    }
  }
}

TEST_CASE("child: steps of training" * doctest::skip()) {
  for (const bool fuse : {true, false}) {
    nn::ResNet net(nn::ResNet::Block::bottleneck, {1, 1, 1, 1}, {.num_classes = 10, .fuse = fuse});
    optim::SGD optimizer(net.parameters(), {.lr = 0.01, .momentum = 0.9});
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const bool amp = fuse == (format == MemoryFormat::channels_last);
      const Tensor x = raw::contiguous(rand({1, 3, 33, 33}), format);
      net.train();
      optimizer.zero_grad();
      Tensor loss;
      {
        const AutocastGuard autocast(amp);
        loss = cross_entropy(net(x), from_vector<int64_t>({7}));
      }
      loss.backward();
      optimizer.step();
      net.eval();
      const NoGradGuard no_grad;
      const AutocastGuard autocast(amp);
      net(x);
    }
  }
}

TEST_CASE("resnet: no op takes a kernel that is not for this CPU") {
  const std::string lines = test::run_self("QUERN_VERBOSE=dispatch", "child: steps of training");
  CHECK(test::contains(lines, "SUCCESS"));
  std::istringstream stream(lines);
  int chosen = 0;
  for (std::string line; std::getline(stream, line);) {
    if (!line.ends_with(",chosen")) continue;
    ++chosen;
    CAPTURE(line);
    CHECK_FALSE(test::contains(line, "_reference"));
    // Where vectors are xsimd's, Neon's are those of any Arm CPU; tiles of packed products are by
    // hand.
    const bool has_more = max_isa() != Isa::portable &&
                          (max_isa() < Isa::neon || test::contains(line, "dispatch,gemm,gemm_"));
    if (has_more) CHECK_FALSE(test::contains(line, "_portable"));
  }
  CHECK(chosen > 20);
}
