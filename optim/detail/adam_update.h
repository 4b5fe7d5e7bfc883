// What Adam and AdamW share: all but where the decay goes.
#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/adam_idle.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

template <class Options>
void check_adam_options(std::string_view name, const Options& o) {
  check_like_adam(name, o);
  check(
      o.idle == Idle::lazy || o.beta1 * o.beta1 < o.beta2, name,
      "idle: expected beta1 less than the root of beta2 with Idle::catch_up, got {}, {}: idle rows "
      "would not come to rest",
      o.beta1, o.beta2);
}

/// For Optimizer::make_idle().
template <class Options>
auto adam_idle(const Options& o) {
  return [&o](const Tensor& param) { return std::make_shared<AdamIdle>(param, o.beta1, o.beta2); };
}

/// The constants of a parameter's t-th step, without decay.
template <class Options>
kernels::AdamWStep adam_step(const Options& o, double t) {
  return {.decay = 1,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .step_size = o.lr / (1 - std::pow(o.beta1, t)),
          .scale = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
          .eps = o.eps};
}

/// Updates the slots by step_of(slot)'s constants.
template <class Slot, class StepOf>
void run_adam(std::string_view name, const std::vector<Slot*>& slots, const StepOf& step_of) {
  UpdatePass<kernels::AdamWStep> pass(name);
  std::vector<kernels::AdamWStep> steps;
  for (Slot* slot : slots) {
    steps.push_back(step_of(*slot));
    pass.add(kernels::select_adamw_kernel(slot->param.dtype()), steps.back(), *slot, 2);
  }
  pass.run();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i]->idle)
      static_cast<AdamIdle&>(*slots[i]->idle).remember(steps[i], slots[i]->param.grad());
    ++slots[i]->steps;
  }
}

}  // namespace quern::optim
