#include "quern/optim/nadam.h"

#include <cmath>

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

double mu(const NAdamOptions& o, double t) {
  return o.beta1 * (1 - 0.5 * std::pow(0.96, t * o.momentum_decay));
}

/// μ₁ ··· μₜ; 0 where that is too little to be seen in 1 less it.
double product_of_mu(const NAdamOptions& o, double t) {
  double product = 1;
  for (double i = 1; i <= t && product != 0; ++i)
    product = product < 0x1p-60 ? 0 : product * mu(o, i);
  return product;
}

kernels::NAdamStep step_of(const NAdamOptions& o, double t) {
  const double now = product_of_mu(o, t), next = mu(o, t + 1);
  return {.by_grad = o.lr * (1 - mu(o, t)) / (1 - now),
          .by_moment = o.lr * next / (1 - now * next),
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .scale = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
          .eps = o.eps,
          .l2 = o.weight_decay};
}

}  // namespace

NAdam::NAdam(std::vector<Group<NAdamOptions>> groups)
    : OptimizerOf("nadam", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const NAdamOptions& o : options_) {
    check_like_adam(name_, o);
    check_not_negative(name_, "momentum_decay", o.momentum_decay);
  }
  make_states();
}

void NAdam::step() { step_by_formula(step_of); }

}  // namespace quern::optim
