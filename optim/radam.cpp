#include "quern/optim/radam.h"

#include <cmath>

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::RAdamStep step_of(const RAdamOptions& o, double t) {
  const double left = std::pow(o.beta2, t), most = 2 / (1 - o.beta2) - 1;
  const double rho = most - 2 * t * left / (1 - left);
  const double rectified =
      std::sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho) * (1 - left));
  return {.step_size = o.lr / (1 - std::pow(o.beta1, t)) * (rho > 5 ? rectified : 1),
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .l2 = o.weight_decay,
          .rectified = rho > 5};
}

}  // namespace

RAdam::RAdam(std::vector<Group<RAdamOptions>> groups)
    : OptimizerOf("radam", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const RAdamOptions& o : options_) check_like_adam(name_, o);
  make_states();
}

void RAdam::step() { step_by_formula(step_of); }

}  // namespace quern::optim
