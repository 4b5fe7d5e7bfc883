#include "quern/nn/sequential.h"

namespace quern::nn {

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (Module* module : modules_) y = (*module)(y);
  return y;
}

}  // namespace quern::nn
