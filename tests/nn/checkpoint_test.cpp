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
