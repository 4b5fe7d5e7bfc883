// Activations: torch.nn.ReLU, GELU, SiLU, Sigmoid, Tanh, Softmax and LogSoftmax. Of any shape and
// format, which the output has, too; no parameters. Errors: those of the op.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// max(x, 0)
class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// x·Φ(x), by erf: Hendrycks and Gimpel 2016
class GELU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// x·sigmoid(x)
class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// 1 / (1 + exp(-x))
class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// exp(x) / Σ exp(x) along `dim`, which may be negative: -1 is the last.
class Softmax : public Module {
 public:
  explicit Softmax(int64_t dim) : dim(dim) {}
  Tensor forward(const Tensor& x) override;

  int64_t dim;
};

/// x - log Σ exp(x) along `dim`
class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int64_t dim) : dim(dim) {}
  Tensor forward(const Tensor& x) override;

  int64_t dim;
};

}  // namespace quern::nn
