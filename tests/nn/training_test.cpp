// A first program: a small net learns to tell the two kinds of images apart.
#include <doctest/doctest.h>

#include "quern/autograd/grad_mode.h"
#include "quern/nn/nn.h"
#include "quern/ops/activation.h"
#include "quern/ops/autocast.h"
#include "quern/ops/flatten.h"
#include "quern/ops/max_pool2d.h"
#include "quern/optim/sgd.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

using namespace quern;

namespace {

struct Net : nn::Module {
  nn::Conv2d& conv = register_module("conv", nn::Conv2d(1, 4, 3, {.padding = 1}));
  nn::BatchNorm2d& norm = register_module("norm", nn::BatchNorm2d(4));
  nn::Linear& head = register_module("head", nn::Linear(4 * 4 * 4, 2));

  Tensor forward(const Tensor& x) override {
    return head(flatten(max_pool2d(relu(norm(conv(x))), 2), 1));
  }
};

}  // namespace

TEST_CASE("a net of one's own trains, saves and loads") {
  manual_seed(5);
  Net net;
  nn::CrossEntropyLoss criterion;
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});

  // Noise, brighter on its left half if the target is 1.
  Tensor x = randn({16, 1, 8, 8});
  Tensor target = randint(0, 2, {16});
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t row = 0; row < 8; ++row)
      for (int64_t column = 0; column < 4; ++column)
        x.out<float>()[(i * 8 + row) * 8 + column] += static_cast<float>(target.data<int64_t>()[i]);

  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    Tensor loss = criterion(net(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item();
  }
  CHECK(first > 0.4);  // chance is ln(2) = 0.69
  CHECK(last < 0.05);

  Net copy;
  copy.load_state_dict(net.state_dict());
  net.eval();
  copy.eval();
  CHECK(copy(x).to_vector<float>() == net(x).to_vector<float>());
}

TEST_CASE("weights written through pointers that were taken once are seen in every step") {
  Net held, copied;
  copied.load_state_dict(held.state_dict());
  std::vector<float*> pointers;
  for (const Tensor& p : held.parameters()) pointers.push_back(p.mutable_data<float>());
  const Tensor x = randn({16, 1, 8, 8}), target = randint(0, 2, {16});
  nn::CrossEntropyLoss criterion;
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    std::vector<float> losses;
    for (Net* net : {&held, &copied}) {
      {
        const NoGradGuard inference;
        losses.push_back(criterion((*net)(x), target).item<float>());
      }
      const AutocastGuard autocast(step % 4 < 2);
      net->zero_grad();
      const Tensor loss = criterion((*net)(x), target);
      losses.push_back(loss.item<float>());
      loss.backward();
    }
    CHECK(losses[0] == losses[2]);
    CHECK(losses[1] == losses[3]);
    for (size_t i = 0; i < pointers.size(); ++i) {
      const Tensor p = copied.parameters()[i], grad = raw::contiguous(p.grad());
      std::vector<float> next = p.to_vector<float>();
      for (size_t j = 0; j < next.size(); ++j)
        pointers[i][j] = next[j] -= 0.1f * grad.data<float>()[j];
      raw::copy_(p, from_vector(next, p.shape()));
    }
  }
}
