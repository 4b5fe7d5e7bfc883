#include "quern/optim/adamw.h"

#include "quern/optim/detail/adam_update.h"

namespace quern::optim {

AdamW::AdamW(std::vector<Group<AdamWOptions>> groups)
    : OptimizerOf("adamw", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const AdamWOptions& o : options_) check_adam_options("adamw", o);
  for (size_t group = 0; group < options_.size(); ++group) {
    make_state(group);
    if (options_[group].idle == Idle::catch_up) make_idle(group, adam_idle(options_[group]));
  }
}

void AdamW::step() {
  run_adam("adamw", slots_to_update(), [&](const Slot& slot) {
    const AdamWOptions& o = options_[slot.group];
    kernels::AdamWStep step = adam_step(o, static_cast<double>(slot.steps + 1));
    step.decay = 1 - o.lr * o.weight_decay;
    return step;
  });
}

}  // namespace quern::optim
