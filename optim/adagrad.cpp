#include "quern/optim/adagrad.h"

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::AdagradStep step_of(const AdagradOptions& o, double t) {
  return {.lr = o.lr / (1 + (t - 1) * o.lr_decay), .eps = o.eps, .l2 = o.weight_decay};
}

Initial initial_of(const AdagradOptions& o) { return {{o.initial_accumulator_value, 0}}; }

}  // namespace

Adagrad::Adagrad(std::vector<Group<AdagradOptions>> groups)
    : OptimizerOf("adagrad", {"sum"}, groups) {
  for (const AdagradOptions& o : options_) {
    check_not_negative("adagrad", {{"lr", o.lr},
                                   {"lr_decay", o.lr_decay},
                                   {"weight_decay", o.weight_decay},
                                   {"initial_accumulator_value", o.initial_accumulator_value},
                                   {"eps", o.eps}});
  }
  for (size_t group = 0; group < options_.size(); ++group)
    make_state(group, initial_of(options_[group]));
}

void Adagrad::step() { step_by_formula(step_of, initial_of); }

}  // namespace quern::optim
