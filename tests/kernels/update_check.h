// What the tests of optimizers' kernels share: a record against the oracle of each element, over
// sizes around a vector.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "optim/oracle.h"
#include "quern/ops/kernels/optim/update_kernel.h"
#include "quern/ops/kernels/table.h"
#include "quern/tensor/cpu_features.h"

namespace quern::testing {

using namespace kernels;

inline constexpr double kGuard = 12345;

/// Numbers with all bits of the mantissa in use, of either sign, |x| in 0.1..1.1 (so that a second
/// moment is far from zero).
inline double number(int64_t i, int salt) {
  const double x = 0.1 + std::fmod(0.6180339887498949 * static_cast<double>(i * 7 + salt), 1.0);
  return (i + salt) % 3 == 0 ? -x : x;
}

/// Buffers of a span with guards behind.
template <class S>
struct Buffers {
  static constexpr int64_t kGuards = 16;
  std::vector<S> param, grad, state0, state1;

  /// `squares_first`: state0 is what a root is taken of.
  Buffers(int64_t n, bool squares_first) {
    for (int64_t i = 0; i < n + kGuards; ++i) {
      const bool guard = i >= n;
      param.push_back(static_cast<S>(guard ? kGuard : number(i, 1)));
      grad.push_back(static_cast<S>(guard ? kGuard : number(i, 2)));
      const double first = squares_first ? std::abs(number(i, 3)) : number(i, 3);
      state0.push_back(static_cast<S>(guard ? kGuard : first));
      state1.push_back(static_cast<S>(guard ? kGuard : std::abs(number(i, 4))));
    }
  }
  UpdateSpan span(int64_t n) {
    return {param.data(), grad.data(), {state0.data(), state1.data()}, n};
  }
};

template <class S, class Step, class Options>
void check_kernel(const UpdateKernel<Step>& kernel, const Step& step, const Options& options,
                  int steps_before, int states) {
  for (int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000}) {
    constexpr bool squares_first = std::is_same_v<Step, RmspropStep> ||
                                   std::is_same_v<Step, AdagradStep> ||
                                   std::is_same_v<Step, AdadeltaStep>;
    const Buffers<S> before(n, squares_first);
    Buffers<S> after = before;
    if (steps_before == 0 && states == 1)
      std::fill_n(after.state0.begin(), n, std::numeric_limits<S>::quiet_NaN());
    UpdateSpan span = after.span(n);
    for (int s = states; s < 2; ++s) span.state[s] = nullptr;
    kernel.run(step, span);

    for (size_t i = 0; i < before.param.size(); ++i) {
      Oracle expected = testing::oracle(kernel.dtype, static_cast<double>(before.param[i]));
      expected.steps = steps_before;
      expected.state0 = {before.state0[i], 0, expected.u};
      expected.state1 = {before.state1[i], 0, expected.u};
      const bool guard = static_cast<int64_t>(i) >= n;
      if (!guard) expected.step(static_cast<double>(before.grad[i]), options);
      CAPTURE(kernel.name);
      CAPTURE(n);
      CAPTURE(i);
      REQUIRE(expected.param.covers(static_cast<double>(after.param[i])));
      REQUIRE(expected.state0.covers(static_cast<double>(after.state0[i])));
      REQUIRE(expected.state1.covers(static_cast<double>(after.state1[i])));
      REQUIRE(after.grad[i] == before.grad[i]);
    }
  }
}

/// Every record of this step that this machine runs, of which there must be one.
template <class Step, class Options>
void check_all(const Step& step, const Options& options, int steps_before, int states) {
  int ran = 0;
  for (const UpdateKernel<Step>* kernel : table<UpdateKernel<Step>>()) {
    if (!isa_enabled(kernel->isa)) {
      MESSAGE("skipped: ", kernel->name, ": ", why_disabled(kernel->isa));
      continue;
    }
    ++ran;
    if (kernel->dtype == DType::f64)
      check_kernel<double>(*kernel, step, options, steps_before, states);
    else check_kernel<float>(*kernel, step, options, steps_before, states);
  }
  CHECK(ran > 0);
}

}  // namespace quern::testing
