// Functions of each element. dtype, shape and memory format are those of x; exp, log and sqrt take
// integers as f32. Errors: undefined tensors, bool.
#pragma once
#include <limits>

#include "quern/tensor/tensor.h"

namespace quern {

Tensor neg(const Tensor& x);   ///< -x
Tensor abs(const Tensor& x);   ///< gradient 0 at 0
Tensor exp(const Tensor& x);   ///< autocast: f32
Tensor log(const Tensor& x);   ///< autocast: f32
Tensor sqrt(const Tensor& x);  ///< gradient inf at 0

/// x where min <= x <= max, else the bound it passes; the gradient passes where x is not beyond
/// them. Either may be left infinite; one with a fraction makes an integer x f32. Error: NaN
/// bounds.
Tensor clamp(const Tensor& x, double min, double max = std::numeric_limits<double>::infinity());

inline Tensor operator-(const Tensor& x) { return neg(x); }

}  // namespace quern
