#include "quern/nn/norm.h"

#include "quern/ops/batch_norm.h"
#include "quern/ops/layer_norm.h"
#include "quern/tensor/raw.h"

namespace quern::nn {

BatchNorm2d::BatchNorm2d(int64_t features, double eps, double momentum)
    : eps(eps), momentum(momentum) {
  check(features >= 1, "BatchNorm2d", "features: expected at least 1, got {}", features);
  weight = register_parameter("weight", ones({features}));
  bias = register_parameter("bias", zeros({features}));
  running_mean = register_buffer("running_mean", zeros({features}));
  running_var = register_buffer("running_var", ones({features}));
  num_batches_tracked = register_buffer("num_batches_tracked", zeros({}, DType::i64));
}

Tensor BatchNorm2d::forward(const Tensor& x) {
  check(x.defined() && x.dim() == 4, "BatchNorm2d", "input: expected [N,{},H,W], got {}",
        weight.numel(), x);
  Tensor y = batch_norm(x, running_mean, running_var, weight, bias, is_training(), momentum, eps);
  if (is_training()) count_batch();
  return y;
}

void BatchNorm2d::count_batch() { raw::fill_(num_batches_tracked, num_batches_tracked.item() + 1); }

LayerNorm::LayerNorm(const Shape& shape, double eps) : eps(eps) {
  check(!shape.empty() && numel(shape) > 0, "LayerNorm",
        "shape: expected at least one size and none of 0, got {}", shape);
  weight = register_parameter("weight", ones(shape));
  bias = register_parameter("bias", zeros(shape));
}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, weight.shape(), weight, bias, eps);
}

}  // namespace quern::nn
