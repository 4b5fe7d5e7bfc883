#include "quern/nn/init.h"

#include <cmath>

#include "quern/tensor/raw.h"

namespace quern::nn::init {
namespace {

double kaiming_std(const Tensor& weight, const Kaiming& options) {
  Fans fan = fans(weight);
  return gain(options.nonlinearity, options.a) /
         std::sqrt(static_cast<double>(options.fan == Fan::in ? fan.in : fan.out));
}

double xavier_std(const Tensor& weight, double gain) {
  Fans fan = fans(weight);
  return gain * std::sqrt(2.0 / static_cast<double>(fan.in + fan.out));
}

/// Uniform with mean 0 and this standard deviation.
void uniform_of_std_(const Tensor& t, double std, Generator& generator) {
  double bound = std::sqrt(3.0) * std;
  uniform_(t, -bound, bound, generator);
}

}  // namespace

Fans fans(const Tensor& weight) {
  check(weight.defined() && weight.dim() >= 2 && weight.numel() > 0, "init",
        "weight: expected at least two dimensions and no empty one, got {}", weight);
  int64_t outputs = weight.size(0), inputs = weight.size(1);
  int64_t taps = weight.numel() / (outputs * inputs);
  return {inputs * taps, outputs * taps};
}

double gain(Nonlinearity nonlinearity, double a) {
  switch (nonlinearity) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid: return 1;
    case Nonlinearity::tanh: return 5.0 / 3;
    case Nonlinearity::relu: return std::sqrt(2.0);
    case Nonlinearity::leaky_relu: return std::sqrt(2 / (1 + a * a));
    case Nonlinearity::selu: break;
  }
  return 0.75;
}

void constant_(const Tensor& t, double value) { raw::fill_(t, value); }

void kaiming_uniform_(const Tensor& weight, Kaiming options, Generator& generator) {
  uniform_of_std_(weight, kaiming_std(weight, options), generator);
}

void kaiming_normal_(const Tensor& weight, Kaiming options, Generator& generator) {
  normal_(weight, 0, kaiming_std(weight, options), generator);
}

void xavier_uniform_(const Tensor& weight, double gain, Generator& generator) {
  uniform_of_std_(weight, xavier_std(weight, gain), generator);
}

void xavier_normal_(const Tensor& weight, double gain, Generator& generator) {
  normal_(weight, 0, xavier_std(weight, gain), generator);
}

void default_(const Tensor& weight, const Tensor& bias, Generator& generator) {
  kaiming_uniform_(weight, {.a = std::sqrt(5.0)}, generator);
  if (!bias.defined()) return;
  double bound = 1 / std::sqrt(static_cast<double>(fans(weight).in));
  uniform_(bias, -bound, bound, generator);
}

}  // namespace quern::nn::init
