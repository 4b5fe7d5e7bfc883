#include "quern/optim/lamb.h"

#include <cmath>

#include "quern/ops/kernels/optim/update.h"
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/optim/detail/check_options.h"
#include "quern/optim/detail/sum_of_squares.h"
#include "quern/optim/detail/update_pass.h"

namespace quern::optim {
namespace {

kernels::LambStep step_of(const LAMBOptions& o, double t) {
  return {.beta1 = o.beta1,
          .beta2 = o.beta2,
          .by_m = 1 / (1 - std::pow(o.beta1, t)),
          .by_v = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .measures = true,
          .rate = 0};
}

struct Squares {
  SumOfSquares p, u;
};

/// Moves the states on, and adds the squares of the elements and of u.
template <class S>
void measure(const UpdatePass<kernels::LambStep>::Job& job, const kernels::UpdateSpan& span,
             Squares& sums) {
  each_copied_piece<S>(job.param.dtype(), span,
                       [&](const kernels::UpdateSpan& piece, std::byte*, int64_t) {
                         const S* copy = static_cast<const S*>(piece.param);
                         sums.p.add(copy, piece.n);
                         job.kernel->run(job.step, piece);
                         sums.u.add(copy, piece.n);
                       });
}

}  // namespace

LAMB::LAMB(std::vector<Group<LAMBOptions>> groups)
    : OptimizerOf("lamb", {"exp_avg", "exp_avg_sq"}, groups) {
  for (const LAMBOptions& o : options_) check_like_adam(name_, o);
  make_states();
}

void LAMB::step() {
  const std::vector<Slot*> slots = slots_to_update();
  UpdatePass<kernels::LambStep> pass("lamb");
  for (Slot* slot : slots)
    pass.add(kernels::select_update<kernels::LambKernel>("lamb", slot->param.dtype()),
             step_of(options_[slot->group], static_cast<double>(slot->steps + 1)), *slot, 2);

  std::vector<Squares> of_chunk(pass.chunks().size());
  pass.each_span([&](const auto& job, size_t chunk, const kernels::UpdateSpan& span, int64_t) {
    if (job.param.dtype() == DType::f64) measure<double>(job, span, of_chunk[chunk]);
    else measure<float>(job, span, of_chunk[chunk]);
  });
  std::vector<double> of_p(slots.size()), of_u(slots.size());
  for (size_t chunk = 0; chunk < of_chunk.size(); ++chunk) {
    of_p[pass.chunks()[chunk].job] += of_chunk[chunk].p.value();
    of_u[pass.chunks()[chunk].job] += of_chunk[chunk].u.value();
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const double p = of_p[i], u = of_u[i];
    kernels::LambStep& step = pass.jobs()[i].step;
    step.measures = false;
    step.rate = options_[slots[i]->group].lr * (p > 0 && u > 0 ? std::sqrt(p / u) : 1);
  }
  pass.run();
  for (Slot* slot : slots) ++slot->steps;
}

}  // namespace quern::optim
