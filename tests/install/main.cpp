#include <quern/quern.h>

#include <cstdio>

int main() {
  using namespace quern;
  nn::Linear linear(3, 4);
  optim::SGD optimizer(linear.parameters());
  const Tensor y = relu(linear(randn({2, 3})));
  sum(y).backward();
  optimizer.step();
  std::printf("%s\n", y.describe().c_str());
}
