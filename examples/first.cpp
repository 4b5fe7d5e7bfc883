// A first program: a small network learns twenty steps on fake images.
#include <fmt/core.h>
#include <quern/quern.h>

using namespace quern;

int main() {
  nn::Sequential net(nn::Conv2d(3, 16, 3, {.padding = 1}), nn::BatchNorm2d(16), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Flatten(), nn::Linear(16 * 8 * 8, 10));
  optim::SGD optimizer(net.parameters(), {.lr = 0.01, .momentum = 0.9});
  nn::CrossEntropyLoss criterion;
  const Tensor images = randn({32, 3, 16, 16}), labels = randint(0, 10, {32});

  for (int step = 0; step < 20; ++step) {
    const Tensor loss = criterion(net(images), labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    fmt::print("step {:2}  loss {:.4f}\n", step, loss.item());
  }
}
