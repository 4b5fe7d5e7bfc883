#include "quern/optim/rprop.h"

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::RpropStep step_of(const RpropOptions& o, double) {
  return {.less = o.etaminus, .more = o.etaplus, .smallest = o.step_min, .largest = o.step_max};
}

Initial initial_of(const RpropOptions& o) { return {{0, o.lr}}; }

}  // namespace

Rprop::Rprop(std::vector<Group<RpropOptions>> groups)
    : OptimizerOf("rprop", {"prev", "step_size"}, groups) {
  for (const RpropOptions& o : options_) {
    check_not_negative("rprop", {{"lr", o.lr},
                                 {"etaminus", o.etaminus},
                                 {"etaplus", o.etaplus},
                                 {"step_min", o.step_min},
                                 {"step_max", o.step_max}});
    check(o.etaminus < 1 && o.etaplus > 1, "rprop",
          "etaminus, etaplus: expected less and more than 1, got {}, {}", o.etaminus, o.etaplus);
  }
  for (size_t group = 0; group < options_.size(); ++group)
    make_state(group, initial_of(options_[group]));
}

void Rprop::step() { step_by_formula(step_of, initial_of); }

}  // namespace quern::optim
