// The updates of one scalar parameter, written from PyTorch's documentation, with the bound on what
// a computation with unit roundoff u may be off after any number of steps.
#pragma once
#include "optim/tracked.h"
#include "quern/optim/adam.h"
#include "quern/optim/adamw.h"
#include "quern/optim/rmsprop.h"
#include "quern/optim/sgd.h"

namespace quern::testing {

struct Oracle {
  long double u;        // of the arithmetic
  long double u_param;  // of storing the parameter, where that is coarser; else 0
  Tracked param, state0 = {}, state1 = {};
  int steps = 0;

  void store(const Tracked& p) {
    param = u_param == 0 ? p : rounded(p.value, p.error, u_param);
    param.u = u;
    ++steps;
  }
  Tracked c(double value) const { return Tracked::constant(value, u); }

  void step(double gradient, const optim::SGDOptions& o) {
    Tracked g{gradient, 0, u};
    if (o.weight_decay != 0) g = g + c(o.weight_decay) * param;
    if (o.momentum != 0) {
      state0 = steps == 0 ? g : c(o.momentum) * state0 + c(1 - o.dampening) * g;
      g = o.nesterov ? g + c(o.momentum) * state0 : state0;
    }
    store(param - c(o.lr) * g);
  }

  void step(double gradient, const optim::AdamWOptions& o) {
    adam({gradient, 0, u}, c(1 - o.lr * o.weight_decay) * param, o);
  }

  void step(double gradient, const optim::AdamOptions& o) {
    adam(Tracked{gradient, 0, u} + c(o.weight_decay) * param, param, o);
  }

  void step(double gradient, const optim::RMSpropOptions& o) {
    const Tracked g = Tracked{gradient, 0, u} + c(o.weight_decay) * param;
    state0 = c(o.alpha) * state0 + c(1 - o.alpha) * g * g;
    Tracked by = g / (sqrt(state0) + c(o.eps));
    if (o.momentum != 0) by = state1 = c(o.momentum) * state1 + by;
    store(param - c(o.lr) * by);
  }

  template <class Options>
  void adam(const Tracked& g, const Tracked& decayed, const Options& o) {
    const double t = steps + 1;
    const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
    state0 = state0 + c(1 - o.beta1) * (g - state0);
    state1 = c(o.beta2) * state1 + c(1 - o.beta2) * g * g;
    const Tracked denominator = sqrt(state1) * c(1 / std::sqrt(correction2)) + c(o.eps);
    store(decayed - c(o.lr / correction1) * state0 / denominator);
  }
};

inline constexpr long double kRoundoffF32 = 0x1p-24L, kRoundoffF64 = 0x1p-53L,
                             kRoundoffBf16 = 0x1p-8L;

/// The oracle for a parameter of this dtype that starts at `value`.
inline Oracle oracle(DType dtype, double value) {
  const long double u = dtype == DType::f64 ? kRoundoffF64 : kRoundoffF32;
  return {u, dtype == DType::bf16 ? kRoundoffBf16 : 0, {value, 0, u}};
}

}  // namespace quern::testing
