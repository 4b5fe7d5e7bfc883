#include "quern/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "quern/optim/detail/check_options.h"

namespace quern::optim {

Schedule step_lr(double lr, int64_t step_size, double gamma) {
  check_not_negative("step_lr", "lr", lr);
  check_not_negative("step_lr", "gamma", gamma);
  check(step_size >= 1, "step_lr", "step_size: expected at least 1, got {}", step_size);
  return [=](int64_t t) { return lr * std::pow(gamma, static_cast<double>(t / step_size)); };
}

Schedule cosine_annealing(double lr, int64_t period, double min_lr) {
  check_not_negative("cosine_annealing", "lr", lr);
  check_not_negative("cosine_annealing", "min_lr", min_lr);
  check(period >= 1, "cosine_annealing", "period: expected at least 1, got {}", period);
  return [=](int64_t t) {
    const double turn = std::numbers::pi * static_cast<double>(t) / static_cast<double>(period);
    return min_lr + (lr - min_lr) * (1 + std::cos(turn)) / 2;
  };
}

Schedule linear_warmup(double lr, int64_t steps, double start) {
  check_not_negative("linear_warmup", "lr", lr);
  check(steps >= 1, "linear_warmup", "steps: expected at least 1, got {}", steps);
  check(start >= 0 && start <= 1, "linear_warmup", "start: expected 0..1, got {}", start);
  return [=](int64_t t) {
    const double done = static_cast<double>(std::min(t, steps)) / static_cast<double>(steps);
    return lr * (start + (1 - start) * done);
  };
}

Schedule chain(Schedule first, int64_t steps, Schedule second) {
  check(first && second, "chain", "schedules: expected two, got an empty one");
  check(steps >= 0, "chain", "steps: expected at least 0, got {}", steps);
  return [=](int64_t t) { return t < steps ? first(t) : second(t - steps); };
}

Schedule warmup_then(int64_t steps, Schedule second, double start) {
  check(static_cast<bool>(second), "warmup_then", "second: expected a schedule, got an empty one");
  const double lr = second(0);
  return chain(linear_warmup(lr, steps, start), steps, std::move(second));
}

}  // namespace quern::optim
