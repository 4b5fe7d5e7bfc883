// The short way to write an optimizer: its options, what a step's constants are of them, and a
// formula over elements (ops/kernels/optim/formulas.h). The walks over dense parameters and over
// the rows of row-sparse gradients are UpdatePass's.
#pragma once
#include <cmath>
#include <vector>

#include "quern/ops/kernels/optim/update.h"
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

template <class Options>
template <class Step>
void OptimizerOf<Options>::step_by_formula(Step (*step_of)(const Options&, double t),
                                           Initial (*initial_of)(const Options&)) {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<Step> pass(name_);
  for (Slot* slot : slots) {
    const Options& o = options_[slot->group];
    const auto& kernel =
        kernels::select_update<kernels::UpdateKernel<Step>>(name_, slot->param.dtype());
    pass.add(kernel, step_of(o, static_cast<double>(slot->steps + 1)), *slot, num_states(),
             initial_of ? initial_of(o) : Initial{});
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
