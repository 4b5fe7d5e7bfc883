#include "quern/nn/sequential.h"

namespace quern::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (Module* module : modules_) y = (*module)(y);
  return y;
}

Module& Sequential::operator[](size_t i) {
  check(i < size(), "Sequential", "index: expected less than {}, got {}", size(), i);
  return *modules_[i];
}

}  // namespace quern::nn
