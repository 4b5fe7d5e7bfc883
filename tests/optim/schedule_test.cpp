#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "quern/optim/schedule.h"
#include "quern/tensor/check.h"

using namespace quern;
using namespace quern::optim;

namespace {
/// Equal but for the rounding of a few f64 operations.
bool close(double a, double b) {
  return std::abs(a - b) <= 8 * std::numeric_limits<double>::epsilon() * std::abs(b);
}
}  // namespace

TEST_CASE("step_lr falls by gamma every step_size steps") {
  const Schedule lr = step_lr(0.8, 30, 0.5);
  CHECK(lr(0) == 0.8);
  CHECK(lr(29) == 0.8);
  CHECK(lr(30) == 0.4);
  CHECK(lr(59) == 0.4);
  CHECK(lr(60) == 0.2);
}

TEST_CASE("cosine_annealing goes from lr to min_lr") {
  const Schedule lr = cosine_annealing(1.0, 12, 0.2);
  CHECK(close(lr(0), 1.0));
  CHECK(close(lr(3), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2));
  CHECK(close(lr(4), 0.2 + 0.8 * 0.75));
  CHECK(close(lr(6), 0.6));
  CHECK(close(lr(12), 0.2));
}

TEST_CASE("linear_warmup rises to lr and stays") {
  const Schedule lr = linear_warmup(1.0, 4, 0.2);
  CHECK(close(lr(0), 0.2));
  CHECK(close(lr(1), 0.4));
  CHECK(close(lr(3), 0.8));
  CHECK(close(lr(4), 1.0));
  CHECK(close(lr(1000), 1.0));
}

TEST_CASE("a chain counts its second schedule anew") {
  const Schedule lr = warmup_then(5, step_lr(1.0, 2, 0.5), 0.0);
  CHECK(lr(0) == 0.0);
  CHECK(close(lr(4), 0.8));
  CHECK(lr(5) == 1.0);
  CHECK(lr(6) == 1.0);
  CHECK(lr(7) == 0.5);
}

TEST_CASE("schedules refuse what makes no sense") {
  CHECK_THROWS_WITH_AS(step_lr(0.1, 0), "[step_lr] step_size: expected at least 1, got 0", Error);
  CHECK_THROWS_WITH_AS(step_lr(-1, 1),
                       "[step_lr] lr: expected a finite number of at least 0, got -1", Error);
  CHECK_THROWS_AS(cosine_annealing(0.1, 0), Error);
  CHECK_THROWS_AS(linear_warmup(0.1, 5, 1.5), Error);
  CHECK_THROWS_WITH_AS(linear_warmup(0.1, -5), "[linear_warmup] steps: expected at least 1, got -5",
                       Error);
  CHECK_THROWS_AS(chain({}, 5, step_lr(0.1, 1)), Error);
  CHECK_THROWS_AS(warmup_then(5, {}), Error);
}
