#include "quern/optim/adam.h"

#include <cmath>

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

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
  }
  for (size_t group = 0; group < options_.size(); ++group) make_state(group);
}

void Adam::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::AdamWStep> pass("adam");
  for (Slot* slot : slots) {
    const AdamOptions& o = options_[slot->group];
    const double t = static_cast<double>(slot->steps + 1);
    const kernels::AdamWStep step{.decay = 1,
                                  .beta1 = o.beta1,
                                  .beta2 = o.beta2,
                                  .step_size = o.lr / (1 - std::pow(o.beta1, t)),
                                  .scale = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
                                  .eps = o.eps,
                                  .l2 = o.weight_decay};
    pass.add(kernels::select_adamw_kernel(slot->param.dtype()), step, slot->param, slot->state);
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
