// Activations: torch.nn.ReLU, ReLU6, LeakyReLU, Hardswish, Hardsigmoid, GELU, SiLU, Sigmoid, Tanh,
// Softmax and LogSoftmax. Of any shape and format, which the output has, too; no parameters.
// Errors: those of the op.
#pragma once
#include "quern/nn/module.h"

namespace quern::nn {

/// max(x, 0)
class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// min(max(x, 0), 6)
class ReLU6 : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// x where it is above 0, else slope·x. Error: a slope that is no number.
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double slope = 0.01);  ///< PyTorch's unless given
  Tensor forward(const Tensor& x) override;

  double slope;  ///< below 0
};

/// x·hardsigmoid(x)
class Hardswish : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// min(max(x + 3, 0), 6) / 6
class Hardsigmoid : public Module {
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

/// (exp(x) - exp(-x)) / (exp(x) + exp(-x))
class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// exp(x) / Σ exp(x) along `dim`, which may be negative: -1 is the last.
class Softmax : public Module {
 public:
  explicit Softmax(int64_t dim) : dim(dim) {}  ///< along it
  Tensor forward(const Tensor& x) override;

  int64_t dim;  ///< as given
};

/// x - log Σ exp(x) along `dim`
class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int64_t dim) : dim(dim) {}  ///< along it
  Tensor forward(const Tensor& x) override;

  int64_t dim;  ///< as given
};

}  // namespace quern::nn
