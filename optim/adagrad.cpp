#include "quern/optim/adagrad.h"

#include <cmath>

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::AdagradStep step_of(const AdagradOptions& o, double t) {
  return {.lr = o.lr / (1 + (t - 1) * o.lr_decay), .eps = o.eps, .l2 = o.weight_decay};
}

Initial initial_of(const AdagradOptions& o) { return {{o.initial_accumulator_value, 0}}; }

}  // namespace

Adagrad::Adagrad(Tensors params, AdagradOptions options)
    : Adagrad(std::vector{Group<AdagradOptions>{std::move(params), options}}) {}

Adagrad::Adagrad(std::vector<Group<AdagradOptions>> groups)
    : Optimizer("adagrad", {"sum"}, params_of(groups)), options_(options_of(groups)) {
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

double Adagrad::lr(size_t group) const {
  check_group("adagrad", group, num_groups());
  return options_[group].lr;
}

void Adagrad::set_lr(double lr, size_t group) {
  check_group("adagrad", group, num_groups());
  check_not_negative("adagrad", "lr", lr);
  options_[group].lr = lr;
}

void Adagrad::step() {
  step_by_formula<1>("adagrad", slots_to_update(), options_, step_of, initial_of);
}

}  // namespace quern::optim
