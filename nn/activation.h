// Activations: torch.nn.ReLU, ReLU6, LeakyReLU, Hardswish, Hardsigmoid, GELU, SiLU, Sigmoid, Tanh,
// Softmax and LogSoftmax. Of any shape and format, which the output has, too; no parameters.
// Errors: those of the op.
#pragma once
#include "quern/nn/module.h"
#include "quern/ops/activation.h"

namespace quern::nn {

/// A module that is an op.
template <Tensor (*op)(const Tensor&)>
class OpModule : public Module {
 public:
  Tensor forward(const Tensor& x) override { return op(x); }  ///< op(x)
};

/// max(x, 0)
class ReLU : public OpModule<relu> {};
/// min(max(x, 0), 6)
class ReLU6 : public OpModule<relu6> {};
/// x·hardsigmoid(x)
class Hardswish : public OpModule<hardswish> {};
/// min(max(x + 3, 0), 6) / 6
class Hardsigmoid : public OpModule<hardsigmoid> {};
/// x·Φ(x), by erf: Hendrycks and Gimpel 2016
class GELU : public OpModule<gelu> {};
/// x·sigmoid(x)
class SiLU : public OpModule<silu> {};
/// 1 / (1 + exp(-x))
class Sigmoid : public OpModule<sigmoid> {};
/// (exp(x) - exp(-x)) / (exp(x) + exp(-x))
class Tanh : public OpModule<tanh> {};

/// x where it is above 0, else slope·x. Error: a slope that is no number.
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double slope = 0.01);  ///< PyTorch's unless given
  Tensor forward(const Tensor& x) override;

  double slope;  ///< below 0
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
