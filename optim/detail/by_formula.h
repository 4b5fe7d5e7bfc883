// The short way to write an optimizer: its options, what a step's constants are of them, and a
// formula over elements (ops/kernels/optim/formulas.h). The walks over dense parameters and over the
// rows of row-sparse gradients are UpdatePass's.
#pragma once
#include <cmath>
#include <vector>

#include "quern/ops/kernels/optim/update.h"
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {

/// What states start as where a rule's are not zeros.
template <class Options>
Initial zeros_of(const Options&) {
  return {};
}

/// Updates `slots`, of which each has so many states. `step_of` gives the constants of a parameter's
/// t-th step, t from 1, with the options of its group.
template <size_t states, class Slot, class Options, class Step>
void step_by_formula(std::string_view name, const std::vector<Slot*>& slots,
                     const std::vector<Options>& options, Step (*step_of)(const Options&, double t),
                     Initial (*initial_of)(const Options&) = zeros_of<Options>) {
  UpdatePass<Step> pass(name);
  for (Slot* slot : slots) {
    const Options& o = options[slot->group];
    const auto& kernel =
        kernels::select_update<kernels::UpdateKernel<Step>>(name, slot->param.dtype());
    pass.add(kernel, step_of(o, static_cast<double>(slot->steps + 1)), *slot, states,
             initial_of(o));
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
