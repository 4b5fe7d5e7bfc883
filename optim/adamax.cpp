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

Adamax::Adamax(Tensors params, AdamaxOptions options)
    : Adamax(std::vector{Group<AdamaxOptions>{std::move(params), options}}) {}

Adamax::Adamax(std::vector<Group<AdamaxOptions>> groups)
    : OptimizerOf("adamax", {"exp_avg", "exp_inf"}, groups) {
  for (const AdamaxOptions& o : options_) {
    check_not_negative("adamax", {{"lr", o.lr},
                                  {"beta1", o.beta1},
                                  {"beta2", o.beta2},
                                  {"eps", o.eps},
                                  {"weight_decay", o.weight_decay}});
    check(o.beta1 < 1 && o.beta2 < 1, "adamax", "beta1, beta2: expected less than 1, got {}, {}",
          o.beta1, o.beta2);
  }
  for (size_t group = 0; group < options_.size(); ++group) make_state(group);
}

void Adamax::step() { step_by_formula<2>("adamax", slots_to_update(), options_, step_of); }

}  // namespace quern::optim
