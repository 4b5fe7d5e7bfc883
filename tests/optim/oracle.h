// The updates of one scalar parameter, written from PyTorch's documentation, with the bound on what
// a computation with unit roundoff u may be off after any number of steps.
#pragma once
#include "optim/tracked.h"
#include "quern/optim/optim.h"

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

  Tracked decayed(double gradient, double weight_decay) const {
    const Tracked g{gradient, 0, u};
    return weight_decay == 0 ? g : g + c(weight_decay) * param;
  }

  void step(double gradient, const optim::AdagradOptions& o) {
    const Tracked g = decayed(gradient, o.weight_decay);
    state0 = state0 + g * g;
    store(param - c(o.lr / (1 + steps * o.lr_decay)) * g / (sqrt(state0) + c(o.eps)));
  }

  void step(double gradient, const optim::AdadeltaOptions& o) {
    const Tracked g = decayed(gradient, o.weight_decay);
    state0 = c(o.rho) * state0 + c(1 - o.rho) * g * g;
    const Tracked by = sqrt(state1 + c(o.eps)) / sqrt(state0 + c(o.eps)) * g;
    state1 = c(o.rho) * state1 + c(1 - o.rho) * by * by;
    store(param - c(o.lr) * by);
  }

  void step(double gradient, const optim::AdamaxOptions& o) {
    const Tracked g = decayed(gradient, o.weight_decay);
    state0 = state0 + c(1 - o.beta1) * (g - state0);
    state1 = max(c(o.beta2) * state1, abs(g) + c(o.eps));
    store(param - c(o.lr / (1 - std::pow(o.beta1, steps + 1))) * state0 / state1);
  }

  void step(double gradient, const optim::NAdamOptions& o) {
    const auto mu = [&](int t) {
      return o.beta1 * (1 - 0.5 * std::pow(0.96, t * o.momentum_decay));
    };
    const int t = steps + 1;
    double product = 1;
    for (int i = 1; i <= t; ++i) product *= mu(i);
    const Tracked g = decayed(gradient, o.weight_decay);
    state0 = state0 + c(1 - o.beta1) * (g - state0);
    state1 = c(o.beta2) * state1 + c(1 - o.beta2) * g * g;
    const Tracked root = sqrt(state1) * c(1 / std::sqrt(1 - std::pow(o.beta2, t))) + c(o.eps);
    const Tracked by = c(o.lr * (1 - mu(t)) / (1 - product)) * g +
                       c(o.lr * mu(t + 1) / (1 - product * mu(t + 1))) * state0;
    store(param - by / root);
  }

  void step(double gradient, const optim::RAdamOptions& o) {
    const int t = steps + 1;
    const double correction = 1 - std::pow(o.beta2, t), most = 2 / (1 - o.beta2) - 1;
    const double rho = most - 2 * t * std::pow(o.beta2, t) / correction;
    const double r =
        std::sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho) * correction);
    const double size = o.lr / (1 - std::pow(o.beta1, t));
    const Tracked g = decayed(gradient, o.weight_decay);
    state0 = state0 + c(1 - o.beta1) * (g - state0);
    state1 = c(o.beta2) * state1 + c(1 - o.beta2) * g * g;
    store(param - (rho > 5 ? c(size * r) * state0 / (sqrt(state1) + c(o.eps)) : c(size) * state0));
  }

  void step(double gradient, const optim::ASGDOptions& o) {
    const double eta = o.lr / std::pow(1 + o.lambd * o.lr * steps, o.alpha);
    const Tracked g = decayed(gradient, o.weight_decay);
    const Tracked p = c(1 - o.lambd * eta) * param - c(eta) * g;
    const double mu = 1 / std::max(1.0, steps - o.t0);
    state0 = mu == 1 ? p : state0 + c(mu) * (p - state0);
    store(p);
  }

  void step(double gradient, const optim::RpropOptions& o) {
    const long double agrees = static_cast<long double>(gradient) * state0.value;
    const Tracked factor = c(agrees > 0 ? o.etaplus : agrees < 0 ? o.etaminus : 1);
    state1 = min(max(state1 * factor, c(o.step_min)), c(o.step_max));
    const double used = agrees < 0 ? 0 : gradient;
    state0 = {used, 0, u};
    store(used == 0 ? param : used > 0 ? param - state1 : param + state1);
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
