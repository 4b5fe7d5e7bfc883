#include "quern/optim/asgd.h"

#include <cmath>

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::AsgdStep step_of(const ASGDOptions& o, double t) {
  const double eta = o.lr / std::pow(1 + o.lambd * o.lr * (t - 1), o.alpha);
  return {.eta = eta,
          .mu = 1 / std::max(1.0, t - 1 - o.t0),
          .decay = 1 - o.lambd * eta,
          .l2 = o.weight_decay};
}

}  // namespace

ASGD::ASGD(std::vector<Group<ASGDOptions>> groups) : OptimizerOf("asgd", {"ax"}, groups) {
  for (const ASGDOptions& o : options_) {
    check_not_negative("asgd", {{"lr", o.lr},
                                {"lambd", o.lambd},
                                {"alpha", o.alpha},
                                {"t0", o.t0},
                                {"weight_decay", o.weight_decay}});
  }
  make_states();
}

void ASGD::step() { step_by_formula(step_of); }

}  // namespace quern::optim
