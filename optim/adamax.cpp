#include "quern/optim/adamax.h"

#include <cmath>

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::AdamaxStep step_of(const AdamaxOptions& o, double t) {
  return {.step_size = o.lr / (1 - std::pow(o.beta1, t)),
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .l2 = o.weight_decay};
}

}  // namespace

Adamax::Adamax(std::vector<Group<AdamaxOptions>> groups)
    : OptimizerOf("adamax", {"exp_avg", "exp_inf"}, groups) {
  for (const AdamaxOptions& o : options_) check_like_adam(name_, o);
  make_states();
}

void Adamax::step() { step_by_formula(step_of); }

}  // namespace quern::optim
