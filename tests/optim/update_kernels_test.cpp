// Every record of ops/kernels/optim against the formula, element by element, over sizes around a
// vector.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "optim/oracle.h"
#include "quern/ops/kernels/optim/update.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::kernels;
using testing::Oracle;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kGuard = 12345;

/// Numbers with all bits of the mantissa in use, of either sign, |x| in 0.1..1.1 (so that a second
/// moment is far from zero).
double number(int64_t i, int salt) {
  const double x = 0.1 + std::fmod(0.6180339887498949 * static_cast<double>(i * 7 + salt), 1.0);
  return (i + salt) % 3 == 0 ? -x : x;
}

/// Buffers of a span with guards behind: P the parameter's type, S the gradient's and the state's.
template <class P, class S>
struct Buffers {
  static constexpr int64_t kGuards = 16;
  std::vector<P> param;
  std::vector<S> grad, state0, state1;

  /// `squares_first`: state0 is what a root is taken of.
  Buffers(int64_t n, bool squares_first) {
    for (int64_t i = 0; i < n + kGuards; ++i) {
      const bool guard = i >= n;
      param.push_back(static_cast<P>(guard ? kGuard : number(i, 1)));
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

template <class P, class S, class Step, class Options>
void check_kernel(const UpdateKernel<Step>& kernel, const Step& step, const Options& options,
                  int steps_before, int states) {
  for (int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000}) {
    const Buffers<P, S> before(n, std::is_same_v<Step, RmspropStep>);
    Buffers<P, S> after = before;
    if (steps_before == 0 && states == 1)
      std::fill_n(after.state0.begin(), n, static_cast<S>(kNaN));
    UpdateSpan span = after.span(n);
    for (int s = states; s < 2; ++s) span.state[s] = nullptr;
    kernel.run(step, span);

    for (size_t i = 0; i < before.param.size(); ++i) {
      Oracle expected = testing::oracle(kernel.param, static_cast<double>(before.param[i]));
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

template <class Step, class Options>
void check_kernel_of_any_type(const UpdateKernel<Step>& kernel, const Step& step,
                              const Options& options, int steps_before, int states) {
  if (!isa_enabled(kernel.isa)) {
    MESSAGE("skipped: ", kernel.name, ": ", why_disabled(kernel.isa));
    return;
  }
  switch (kernel.param) {
    case DType::f64:
      return check_kernel<double, double>(kernel, step, options, steps_before, states);
    case DType::bf16:
      return check_kernel<bfloat16, float>(kernel, step, options, steps_before, states);
    default: return check_kernel<float, float>(kernel, step, options, steps_before, states);
  }
}

/// The name of the first record for f32 whose instruction set is the best that is allowed.
template <class Kernel>
std::string expected_f32(std::span<const Kernel* const> kernels) {
  for (const Kernel* kernel : kernels)
    if (kernel->param == DType::f32 && kernel->isa <= isa_cap() && cpu_has(kernel->isa))
      return kernel->name;
  return "none";
}

}  // namespace

TEST_CASE("sgd kernels keep to the formula") {
  for (const SgdKernel* kernel : table<SgdKernel>())
    for (double momentum : {0.0, 0.9})
      for (double dampening : {0.0, 0.3})
        for (double weight_decay : {0.0, 0.05})
          for (bool nesterov : {false, true})
            for (int before : {0, 3}) {
              if (nesterov && (momentum == 0 || dampening != 0)) continue;
              const optim::SGDOptions options{0.1, momentum, dampening, weight_decay, nesterov};
              const SgdStep step{0.1, momentum, dampening, weight_decay, nesterov, before == 0};
              check_kernel_of_any_type(*kernel, step, options, before, momentum != 0 ? 1 : 0);
            }
}

TEST_CASE("adamw kernels keep to the formula") {
  for (const AdamWKernel* kernel : table<AdamWKernel>())
    for (double weight_decay : {0.0, 0.05})
      for (int before : {0, 9}) {
        const optim::AdamWOptions options{0.1, 0.8, 0.95, 1e-6, weight_decay};
        const AdamWStep step{.decay = 1 - 0.1 * weight_decay,
                             .beta1 = 0.8,
                             .beta2 = 0.95,
                             .step_size = 0.1 / (1 - std::pow(0.8, before + 1)),
                             .scale = 1 / std::sqrt(1 - std::pow(0.95, before + 1)),
                             .eps = 1e-6};
        check_kernel_of_any_type(*kernel, step, options, before, 2);
      }
}

TEST_CASE("adam's weight decay goes into the gradient") {
  for (const AdamWKernel* kernel : table<AdamWKernel>())
    for (int before : {0, 9}) {
      const optim::AdamOptions options{0.1, 0.8, 0.95, 1e-6, 0.05};
      const AdamWStep step{.decay = 1,
                           .beta1 = 0.8,
                           .beta2 = 0.95,
                           .step_size = 0.1 / (1 - std::pow(0.8, before + 1)),
                           .scale = 1 / std::sqrt(1 - std::pow(0.95, before + 1)),
                           .eps = 1e-6,
                           .l2 = 0.05};
      check_kernel_of_any_type(*kernel, step, options, before, 2);
    }
}

TEST_CASE("rmsprop kernels keep to the formula") {
  for (const RmspropKernel* kernel : table<RmspropKernel>())
    for (double momentum : {0.0, 0.9})
      for (double weight_decay : {0.0, 0.05})
        for (double eps : {1e-8, 0.0316}) {
          const optim::RMSpropOptions options{0.1, 0.9, eps, momentum, weight_decay};
          const RmspropStep step{0.1, 0.9, eps, momentum, weight_decay};
          check_kernel_of_any_type(*kernel, step, options, 1, momentum != 0 ? 2 : 1);
        }
}

TEST_CASE("dispatch takes the best kernel that the cap leaves") {
  const Isa cap = isa_cap();
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (isa > cap || !cpu_has(isa)) continue;
    set_isa_cap(isa);
    CHECK(select_sgd_kernel(DType::f32).name == "sgd_f32_" + std::string(to_string(isa)));
    CHECK(select_adamw_kernel(DType::f32).name == "adamw_f32_" + std::string(to_string(isa)));
    CHECK(select_rmsprop_kernel(DType::f32).name == "rmsprop_f32_" + std::string(to_string(isa)));
  }
  set_isa_cap(cap);
  CHECK(select_sgd_kernel(DType::f32).name == expected_f32(table<SgdKernel>()));
  CHECK(select_sgd_kernel(DType::bf16).name == std::string("sgd_bf16_reference"));
  CHECK(select_adamw_kernel(DType::f64).name == std::string("adamw_f64_reference"));
  CHECK_THROWS_WITH_AS(select_sgd_kernel(DType::i64),
                       "[sgd] parameters: expected bf16, f32 or f64, got i64", Error);
}
