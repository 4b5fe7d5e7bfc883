#include <quern/ops/matmul.h>
#include <quern/tensor/random.h>

#include <cstdio>

int main() {
  quern::Tensor a = quern::randn({2, 3}), b = quern::randn({3, 4});
  std::printf("%s\n", quern::matmul(a, b).describe().c_str());
}
