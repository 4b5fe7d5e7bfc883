#include "quern/optim/adadelta.h"

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::AdadeltaStep step_of(const AdadeltaOptions& o, double) {
  return {.lr = o.lr, .rho = o.rho, .eps = o.eps, .l2 = o.weight_decay};
}

}  // namespace

Adadelta::Adadelta(std::vector<Group<AdadeltaOptions>> groups)
    : OptimizerOf("adadelta", {"square_avg", "acc_delta"}, groups) {
  for (const AdadeltaOptions& o : options_) {
    check_not_negative(
        "adadelta",
        {{"lr", o.lr}, {"rho", o.rho}, {"eps", o.eps}, {"weight_decay", o.weight_decay}});
    check(o.rho <= 1, "adadelta", "rho: expected at most 1, got {}", o.rho);
  }
  make_states();
}

void Adadelta::step() { step_by_formula(step_of); }

}  // namespace quern::optim
