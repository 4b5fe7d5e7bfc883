#include "quern/optim/adamw.h"

#include <cmath>

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

AdamW::AdamW(Tensors params, AdamWOptions options)
    : AdamW(std::vector{Group<AdamWOptions>{std::move(params), options}}) {}

AdamW::AdamW(std::vector<Group<AdamWOptions>> groups)
    : OptimizerOf("adamw", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const AdamWOptions& o : options_) {
    check_not_negative("adamw", "lr", o.lr);
    check_not_negative("adamw", "beta1", o.beta1);
    check_not_negative("adamw", "beta2", o.beta2);
    check(o.beta1 < 1 && o.beta2 < 1, "adamw", "beta1, beta2: expected less than 1, got {}, {}",
          o.beta1, o.beta2);
    check_not_negative("adamw", "eps", o.eps);
    check_not_negative("adamw", "weight_decay", o.weight_decay);
  }
  for (size_t group = 0; group < options_.size(); ++group) make_state(group);
}

void AdamW::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::AdamWStep> pass("adamw");
  for (Slot* slot : slots) {
    const AdamWOptions& o = options_[slot->group];
    const double t = static_cast<double>(slot->steps + 1);
    const kernels::AdamWStep step{.decay = 1 - o.lr * o.weight_decay,
                                  .beta1 = o.beta1,
                                  .beta2 = o.beta2,
                                  .step_size = o.lr / (1 - std::pow(o.beta1, t)),
                                  .scale = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
                                  .eps = o.eps};
    pass.add(kernels::select_adamw_kernel(slot->param.dtype()), step, slot->param, slot->state);
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
