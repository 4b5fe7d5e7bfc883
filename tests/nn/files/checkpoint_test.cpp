// Training that stops, and goes on from files in another program.
#include <doctest/doctest.h>

#include <memory>

#include "gradcheck_helper.h"
#include "quern/nn/nn.h"
#include "quern/ops/activation.h"
#include "quern/ops/linear.h"
#include "quern/optim/optim.h"
#include "temporary_folder.h"

using namespace quern;
using quern::testing::TemporaryFolder;

namespace {

/// Two layers with parameters of any dtype.
struct Net : nn::Module {
  explicit Net(DType dtype) {
    const auto weight = [&](const Shape& shape) { return raw::to(randn(shape), dtype); };
    first = register_parameter("first", weight({16, 8}));
    second = register_parameter("second", weight({4, 16}));
    unused = register_parameter("unused", weight({3}));
  }
  Tensor forward(const Tensor& x) override { return linear(relu(linear(x, first)), second); }

  Tensor first, second, unused;
};

struct Training {
  Training(DType dtype, bool adamw, uint64_t seed) : net((manual_seed(seed), dtype)) {
    if (adamw) optimizer = std::make_unique<optim::AdamW>(net.parameters());
    else
      optimizer = std::make_unique<optim::SGD>(net.parameters(),
                                               optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
  }

  void steps(uint64_t begin, uint64_t end) {
    for (uint64_t step = begin; step < end; ++step) {
      manual_seed(100 + step);
      const Tensor x = raw::to(randn({5, 8}), net.first.dtype()), target = randint(0, 4, {5});
      const Tensor loss = nn::CrossEntropyLoss()(net(x), target);
      optimizer->zero_grad();
      loss.backward();
      optimizer->step();
    }
  }

  Net net;
  std::unique_ptr<optim::Optimizer> optimizer;
};

void check_same(const TensorDict& a, const TensorDict& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    CHECK(test::same_bits(tensor, b.at(name)));
  }
}

}  // namespace

TEST_CASE("training goes on from files with the same bits") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool adamw : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(adamw);
      const TemporaryFolder folder;
      Training straight(dtype, adamw, 1);
      straight.steps(0, 3);
      save_safetensors(folder / "net", straight.net.state_dict());
      save_safetensors(folder / "optimizer", straight.optimizer->state_dict());
      straight.steps(3, 6);

      Training resumed(dtype, adamw, 2);
      resumed.steps(0, 1);  // what it has of its own is forgotten
      resumed.net.load_state_dict(load_safetensors(folder / "net"));
      resumed.optimizer->load_state_dict(load_safetensors(folder / "optimizer"));
      resumed.steps(3, 6);
      check_same(resumed.net.state_dict(), straight.net.state_dict());
      check_same(resumed.optimizer->state_dict(), straight.optimizer->state_dict());

      Training forgetful(dtype, adamw, 2);
      forgetful.net.load_state_dict(load_safetensors(folder / "net"));
      forgetful.steps(3, 6);
      CHECK_FALSE(test::same_bits(forgetful.net.first, straight.net.first));
    }
}

TEST_CASE("an optimizer without state saves and loads as one") {
  const TemporaryFolder folder;
  Net net(DType::f32);
  optim::SGD optimizer(net.parameters(), {.lr = 0.01});
  save_safetensors(folder / "optimizer", optimizer.state_dict());
  optimizer.load_state_dict(load_safetensors(folder / "optimizer"));
  CHECK(optimizer.state_dict().empty());
}

TEST_CASE("a checkpoint brings model, optimizer and random numbers back, and keeps the rest") {
  const TemporaryFolder folder;
  for (const bool adamw : {false, true}) {
    Training straight(DType::f32, adamw, 1);
    straight.steps(0, 3);
    nn::Extras extras{{{"position", full({}, 3, DType::i64)}}, {{"classes", "[\"a\"]"}}};
    nn::save_checkpoint(folder / "c", straight.net, *straight.optimizer, extras);
    const Tensor drawn = randn({8});
    straight.steps(3, 6);

    Training resumed(DType::f32, adamw, 2);
    resumed.steps(0, 1);
    extras = nn::load_checkpoint(folder / "c", resumed.net, *resumed.optimizer);
    CHECK(extras.tensors.at("position").item<int64_t>() == 3);
    CHECK(extras.strings == Metadata{{"classes", "[\"a\"]"}});
    CHECK(test::same_bits(randn({8}), drawn));
    resumed.steps(3, 6);
    check_same(resumed.net.state_dict(), straight.net.state_dict());
    check_same(resumed.optimizer->state_dict(), straight.optimizer->state_dict());
  }
  CHECK(load_weights(folder / "c").size() == 3);
  CHECK(load_weights(folder / "c").contains("first"));
}

TEST_CASE("a checkpoint that does not fit, or is none, changes nothing") {
  const TemporaryFolder folder;
  Training saved(DType::f32, true, 1), other(DType::f32, true, 2);
  saved.steps(0, 2);
  other.steps(0, 1);
  const std::string path = folder / "c";
  nn::save_checkpoint(path, saved.net, *saved.optimizer);
  const std::string good = folder.read("c");
  TensorDict model, optimizer;
  for (const auto& [name, t] : other.net.state_dict()) model.insert(name, raw::clone(t));
  for (const auto& [name, t] : other.optimizer->state_dict()) optimizer.insert(name, t);
  const auto refused = [&](const std::string& file, const std::string& message) {
    CAPTURE(message);
    std::string got;
    try {
      nn::load_checkpoint(file, other.net, *other.optimizer);
    } catch (const Error& error) {
      got = error.what();
    }
    INFO(got);
    CHECK(got.find(message) != std::string::npos);
    check_same(other.net.state_dict(), model);
    check_same(other.optimizer->state_dict(), optimizer);
  };
  refused(folder.write("torn", good.substr(0, good.size() - 1)), "expected");
  refused(folder.write("torn", good.substr(0, 100)), "expected a header of");
  save_safetensors(folder / "plain", saved.net.state_dict());
  refused(folder / "plain", "plain: expected a checkpoint of form 1, got a file that is none");
  save_safetensors(folder / "new", {}, {{nn::kCheckpointKey, "2"}});
  refused(folder / "new", "expected a checkpoint of form 1, got \"2\"");
  save_safetensors(folder / "bare", {}, {{nn::kCheckpointKey, "1"}});
  refused(folder / "bare", "random: expected i64 [2], got none");
  Training sgd(DType::f32, false, 1);
  sgd.steps(0, 1);
  nn::save_checkpoint(path, saved.net, *sgd.optimizer);
  refused(path, "[adamw] state");
  nn::Linear linear(3, 4);
  nn::save_checkpoint(path, linear, *saved.optimizer);
  refused(path, "[load_state_dict] dict");
  CHECK_THROWS_AS(
      nn::save_checkpoint(path, linear, *sgd.optimizer, {{}, {{nn::kCheckpointKey, ""}}}), Error);
}

TEST_CASE("pretrained weights of another number of classes leave the head as it is") {
  manual_seed(1);
  nn::ResNet source = nn::resnet18(), net = nn::resnet18({.num_classes = 10});
  const Tensor head = raw::clone(net.state_dict().at("fc.weight"));
  TensorDict weights;
  for (const auto& [name, t] : source.state_dict())
    if (!name.ends_with("num_batches_tracked")) weights.insert(name, t);
  const auto left_out = nn::load_pretrained(net, weights);
  CHECK(left_out ==
        std::vector<std::string>{"fc.weight (expected f32 [10,512], got f32 [1000,512])",
                                 "fc.bias (expected f32 [10], got f32 [1000])"});
  CHECK(test::same_bits(net.state_dict().at("fc.weight"), head));
  CHECK(test::same_bits(net.state_dict().at("conv1.weight"), weights.at("conv1.weight")));

  nn::ResNet same = nn::resnet18();
  CHECK(nn::load_pretrained(same, weights).empty());
  CHECK(test::same_bits(same.state_dict().at("fc.bias"), weights.at("fc.bias")));
  // Elsewhere than in the head another shape is an error, and so are missing names.
  nn::ResNet larger = nn::resnet50();
  CHECK_THROWS_AS(nn::load_pretrained(larger, weights), Error);
  TensorDict part;
  part.insert("conv1.weight", weights.at("conv1.weight"));
  CHECK_THROWS_AS(nn::load_pretrained(net, part), Error);
}
