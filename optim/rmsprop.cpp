#include "quern/optim/rmsprop.h"

#include <algorithm>

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {
namespace {

std::vector<std::string_view> state_names(const std::vector<Group<RMSpropOptions>>& groups) {
  const auto has_momentum = [](const auto& group) { return group.options.momentum != 0; };
  if (std::ranges::any_of(groups, has_momentum)) return {"square_avg", "momentum_buffer"};
  return {"square_avg"};
}

}  // namespace

RMSprop::RMSprop(Tensors params, RMSpropOptions options)
    : RMSprop(std::vector{Group<RMSpropOptions>{std::move(params), options}}) {}

RMSprop::RMSprop(std::vector<Group<RMSpropOptions>> groups)
    : OptimizerOf("rmsprop", state_names(groups), groups), states_(state_names(groups).size()) {
  for (const RMSpropOptions& o : options_) {
    check_not_negative("rmsprop", "lr", o.lr);
    check_not_negative("rmsprop", "alpha", o.alpha);
    check(o.alpha <= 1, "rmsprop", "alpha: expected at most 1, got {}", o.alpha);
    check_not_negative("rmsprop", "eps", o.eps);
    check_not_negative("rmsprop", "momentum", o.momentum);
    check_not_negative("rmsprop", "weight_decay", o.weight_decay);
  }
  for (size_t group = 0; group < options_.size(); ++group) make_state(group);
}

void RMSprop::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::RmspropStep> pass("rmsprop");
  for (Slot* slot : slots) {
    const RMSpropOptions& o = options_[slot->group];
    const kernels::RmspropStep step{.lr = o.lr,
                                    .alpha = o.alpha,
                                    .eps = o.eps,
                                    .momentum = o.momentum,
                                    .weight_decay = o.weight_decay};
    pass.add(kernels::select_rmsprop_kernel(slot->param.dtype()), step, *slot, states_);
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
