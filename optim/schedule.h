// Learning rates as functions of the step (or the epoch), counted from 0. They keep no state:
// training that resumes at step t goes on with schedule(t).
//
//   const auto lr = optim::warmup_then(5, optim::cosine_annealing(0.1, 90));
//   for (int64_t epoch = 0; epoch < 95; ++epoch) {
//     optimizer.set_lr(lr(epoch));
#pragma once
#include <cstdint>
#include <functional>

namespace quern::optim {

using Schedule = std::function<double(int64_t step)>;  ///< the rate of a step

/// torch's StepLR: lr·gamma^⌊t / step_size⌋. Errors: lr or gamma negative or not finite, step_size
/// < 1.
Schedule step_lr(double lr, int64_t step_size, double gamma = 0.1);

/// torch's CosineAnnealingLR: min_lr + (lr - min_lr)·(1 + cos(π·t / period)) / 2, which rises again
/// after `period` steps. Loshchilov, Hutter, "SGDR", ICLR'17. Errors: a negative or non-finite
/// rate, period < 1.
Schedule cosine_annealing(double lr, int64_t period, double min_lr = 0);

/// torch's LinearLR: lr·(start + (1 - start)·min(t, steps) / steps). Goyal et al., "Accurate, large
/// minibatch SGD", 2017. Errors: lr negative or not finite, steps < 1, start outside 0..1.
Schedule linear_warmup(double lr, int64_t steps, double start = 0.1);

/// torch's SequentialLR: `first` for `steps` steps, then `second`, counted anew from 0. Errors: an
/// empty schedule, steps < 0.
Schedule chain(Schedule first, int64_t steps, Schedule second);

/// linear_warmup() to second(0), then `second`.
Schedule warmup_then(int64_t steps, Schedule second, double start = 0.1);

}  // namespace quern::optim
