#include "quern/optim/sgd.h"

#include "quern/ops/kernels/optim/update.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

SGD::SGD(Tensors params, SGDOptions options)
    : SGD(std::vector{Group<SGDOptions>{std::move(params), options}}) {}

SGD::SGD(std::vector<Group<SGDOptions>> groups) : OptimizerOf("sgd", {"momentum_buffer"}, groups) {
  for (const SGDOptions& o : options_) {
    check_not_negative("sgd", "lr", o.lr);
    check_not_negative("sgd", "momentum", o.momentum);
    check_not_negative("sgd", "dampening", o.dampening);
    check_not_negative("sgd", "weight_decay", o.weight_decay);
    check(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "sgd",
          "nesterov: expected a momentum and no dampening, got momentum {}, dampening {}",
          o.momentum, o.dampening);
  }
  for (size_t group = 0; group < options_.size(); ++group)
    if (options_[group].momentum != 0) make_state(group);
}

void SGD::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::SgdStep> pass("sgd");
  for (Slot* slot : slots) {
    const SGDOptions& o = options_[slot->group];
    const kernels::SgdStep step{.lr = o.lr,
                                .momentum = o.momentum,
                                .dampening = o.dampening,
                                .weight_decay = o.weight_decay,
                                .nesterov = o.nesterov,
                                .first = slot->steps == 0};
    pass.add(kernels::select_sgd_kernel(slot->param.dtype()), step, slot->param,
             std::span(slot->state, o.momentum != 0 ? 1 : 0));
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
