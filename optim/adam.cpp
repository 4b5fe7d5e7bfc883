#include "quern/optim/adam.h"

#include "quern/optim/detail/adam_update.h"

namespace quern::optim {

Adam::Adam(std::vector<Group<AdamOptions>> groups)
    : OptimizerOf("adam", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const AdamOptions& o : options_) {
    check_adam_options("adam", o);
    check(o.idle == Idle::lazy || o.weight_decay == 0, "adam",
          "idle: expected no weight_decay with Idle::catch_up, got {}, which AdamW catches up on",
          o.weight_decay);
  }
  for (size_t group = 0; group < options_.size(); ++group) {
    make_state(group);
    if (options_[group].idle == Idle::catch_up) make_idle(group, adam_idle(options_[group]));
  }
}

void Adam::step() {
  run_adam("adam", slots_to_update(), [&](const Slot& slot) {
    const AdamOptions& o = options_[slot.group];
    kernels::AdamWStep step = adam_step(o, static_cast<double>(slot.steps + 1));
    step.l2 = o.weight_decay;
    return step;
  });
}

}  // namespace quern::optim
