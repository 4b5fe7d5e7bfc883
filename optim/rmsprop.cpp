#include "quern/optim/rmsprop.h"

#include <algorithm>

#include "quern/optim/detail/by_formula.h"

namespace quern::optim {
namespace {

kernels::RmspropStep step_of(const RMSpropOptions& o, double) {
  return {.lr = o.lr,
          .alpha = o.alpha,
          .eps = o.eps,
          .momentum = o.momentum,
          .weight_decay = o.weight_decay};
}

std::vector<std::string_view> state_names(const std::vector<Group<RMSpropOptions>>& groups) {
  const auto has_momentum = [](const auto& group) { return group.options.momentum != 0; };
  if (std::ranges::any_of(groups, has_momentum)) return {"square_avg", "momentum_buffer"};
  return {"square_avg"};
}

}  // namespace

RMSprop::RMSprop(std::vector<Group<RMSpropOptions>> groups)
    : OptimizerOf("rmsprop", state_names(groups), groups) {
  for (const RMSpropOptions& o : options_) {
    check_not_negative("rmsprop", "lr", o.lr);
    check_not_negative("rmsprop", "alpha", o.alpha);
    check(o.alpha <= 1, "rmsprop", "alpha: expected at most 1, got {}", o.alpha);
    check_not_negative("rmsprop", "eps", o.eps);
    check_not_negative("rmsprop", "momentum", o.momentum);
    check_not_negative("rmsprop", "weight_decay", o.weight_decay);
  }
  make_states();
}

void RMSprop::step() { step_by_formula(step_of); }

}  // namespace quern::optim
