// Initial values, in place: torch.nn.init's functions and PyTorch's defaults.
#pragma once
#include "quern/tensor/random.h"
#include "quern/tensor/tensor.h"

/// Initial values: torch.nn.init's names.
namespace quern::nn::init {

/// Inputs and outputs of one unit: in·Πk and out·Πk for a weight [out, in, k...].
struct Fans {
  int64_t in, out;  ///< how many
};
/// Error: fewer than two dimensions, or an empty weight.
Fans fans(const Tensor& weight);

enum class Fan { in, out };  ///< which of Fans the variance is kept over: forward or backward
/// What comes after a layer.
enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// The factor that keeps the variance through the nonlinearity: 1, 1, 5/3, √2, √(2/(1+a²)), 3/4,
/// where a is the slope of leaky_relu.
double gain(Nonlinearity nonlinearity, double a = 0);

/// Of kaiming_uniform_() and kaiming_normal_().
struct Kaiming {
  double a = 0;                                          ///< negative slope, for leaky_relu alone
  Fan fan = Fan::in;                                     ///< forward keeps its variance
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;  ///< what comes after
};

/// @name Initial values
/// All take a floating tensor of any dtype and strides, and draw in logical order.
/// @{

/// All elements `value`.
void constant_(const Tensor& t, double value);
using quern::normal_;   // (t, mean, std)
using quern::uniform_;  // (t, low, high)
/// U(-√3·std, √3·std) with std = gain/√fan. He et al., "Delving deep into
/// rectifiers", ICCV'15.
void kaiming_uniform_(const Tensor& weight, Kaiming options = {},
                      Generator& generator = default_generator());
/// N(0, std²), likewise.
void kaiming_normal_(const Tensor& weight, Kaiming options = {},
                     Generator& generator = default_generator());
/// The same with std = gain·√(2/(fan_in+fan_out)). Glorot, Bengio, "Understanding the difficulty of
/// training deep feedforward neural networks", AISTATS'10.
void xavier_uniform_(const Tensor& weight, double gain = 1,
                     Generator& generator = default_generator());
/// N(0, std²), likewise.
void xavier_normal_(const Tensor& weight, double gain = 1,
                    Generator& generator = default_generator());

/// What PyTorch gives a new Conv2d or Linear: kaiming_uniform_ with a = √5, and a bias (may be
/// undefined) from U(-1/√fan_in, 1/√fan_in).
void default_(const Tensor& weight, const Tensor& bias, Generator& generator = default_generator());
/// @}

}  // namespace quern::nn::init
