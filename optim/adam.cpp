#include "quern/optim/adam.h"

#include <cmath>

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/adam_idle.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {
namespace {

/// The constants of a parameter's t-th step.
kernels::AdamWStep step_of(const AdamOptions& o, double t) {
  return {.decay = 1,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .step_size = o.lr / (1 - std::pow(o.beta1, t)),
          .scale = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
          .eps = o.eps,
          .l2 = o.weight_decay};
}

}  // namespace

Adam::Adam(Tensors params, AdamOptions options)
    : Adam(std::vector{Group<AdamOptions>{std::move(params), options}}) {}

Adam::Adam(std::vector<Group<AdamOptions>> groups)
    : OptimizerOf("adam", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const AdamOptions& o : options_) {
    check_not_negative("adam", "lr", o.lr);
    check_not_negative("adam", "beta1", o.beta1);
    check_not_negative("adam", "beta2", o.beta2);
    check(o.beta1 < 1 && o.beta2 < 1, "adam", "beta1, beta2: expected less than 1, got {}, {}",
          o.beta1, o.beta2);
    check_not_negative("adam", "eps", o.eps);
    check_not_negative("adam", "weight_decay", o.weight_decay);
    check(o.idle == Idle::lazy || o.weight_decay == 0, "adam",
          "idle: expected no weight_decay with Idle::catch_up, got {}, which AdamW catches up on",
          o.weight_decay);
    if (o.idle == Idle::catch_up) check_catches_up("adam", o.beta1, o.beta2);
  }
  for (size_t group = 0; group < options_.size(); ++group) {
    make_state(group);
    const AdamOptions& o = options_[group];
    if (o.idle == Idle::catch_up)
      make_idle(group, [&](const Tensor& param) {
        return std::make_shared<AdamIdle>(param, o.beta1, o.beta2);
      });
  }
}

void Adam::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::AdamWStep> pass("adam");
  std::vector<kernels::AdamWStep> steps;
  for (Slot* slot : slots) {
    steps.push_back(step_of(options_[slot->group], static_cast<double>(slot->steps + 1)));
    pass.add(kernels::select_adamw_kernel(slot->param.dtype()), steps.back(), slot->param,
             slot->state);
  }
  pass.run();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i]->idle)
      static_cast<AdamIdle&>(*slots[i]->idle).remember(steps[i], slots[i]->param.grad());
    ++slots[i]->steps;
  }
}

}  // namespace quern::optim
