// Records for SGD, Adam and RMSprop against the formula, element by element.
#include <doctest/doctest.h>

#include <cmath>

#include "built_isa.h"
#include "quern/ops/kernels/optim/update.h"
#include "quern/tensor/cpu_features.h"
#include "update_check.h"

using namespace quern;
using namespace quern::kernels;
using testing::check_all;

namespace {

/// The name of the first record for f32 whose instruction set is the best that is allowed.
template <class Kernel>
std::string expected_f32(std::span<const Kernel* const> kernels) {
  for (const Kernel* kernel : kernels)
    if (kernel->dtype == DType::f32 && kernel->isa <= isa_cap() && cpu_has(kernel->isa))
      return kernel->name;
  return "none";
}

}  // namespace

TEST_CASE("sgd kernels keep to the formula") {
  for (double momentum : {0.0, 0.9})
    for (double dampening : {0.0, 0.3})
      for (double weight_decay : {0.0, 0.05})
        for (bool nesterov : {false, true})
          for (int before : {0, 3}) {
            if (nesterov && (momentum == 0 || dampening != 0)) continue;
            const optim::SGDOptions options{0.1, momentum, dampening, weight_decay, nesterov};
            const SgdStep step{0.1, momentum, dampening, weight_decay, nesterov, before == 0};
            check_all(step, options, before, momentum != 0 ? 1 : 0);
          }
}

TEST_CASE("adamw kernels keep to the formula") {
  for (double weight_decay : {0.0, 0.05})
    for (int before : {0, 9}) {
      const optim::AdamWOptions options{0.1, 0.8, 0.95, 1e-6, weight_decay};
      const AdamWStep step{.decay = 1 - 0.1 * weight_decay,
                           .beta1 = 0.8,
                           .beta2 = 0.95,
                           .step_size = 0.1 / (1 - std::pow(0.8, before + 1)),
                           .scale = 1 / std::sqrt(1 - std::pow(0.95, before + 1)),
                           .eps = 1e-6};
      check_all(step, options, before, 2);
    }
}

TEST_CASE("adam's weight decay goes into the gradient") {
  for (int before : {0, 9}) {
    const optim::AdamOptions options{0.1, 0.8, 0.95, 1e-6, 0.05};
    const AdamWStep step{.decay = 1,
                         .beta1 = 0.8,
                         .beta2 = 0.95,
                         .step_size = 0.1 / (1 - std::pow(0.8, before + 1)),
                         .scale = 1 / std::sqrt(1 - std::pow(0.95, before + 1)),
                         .eps = 1e-6,
                         .l2 = 0.05};
    check_all(step, options, before, 2);
  }
}

TEST_CASE("rmsprop kernels keep to the formula") {
  for (double momentum : {0.0, 0.9})
    for (double weight_decay : {0.0, 0.05})
      for (double eps : {1e-8, 0.0316}) {
        const optim::RMSpropOptions options{0.1, 0.9, eps, momentum, weight_decay};
        const RmspropStep step{0.1, 0.9, eps, momentum, weight_decay};
        check_all(step, options, 1, momentum != 0 ? 2 : 1);
      }
}

TEST_CASE("dispatch takes the best kernel that the cap leaves") {
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<SgdKernel>(), [](Isa isa) {
    CHECK(select_sgd_kernel(DType::f32).name == "sgd_f32_" + std::string(to_string(isa)));
    CHECK(select_adamw_kernel(DType::f32).name == "adamw_f32_" + std::string(to_string(isa)));
    CHECK(select_update<RmspropKernel>("rmsprop", DType::f32).name ==
          "rmsprop_f32_" + std::string(to_string(isa)));
  });
  CHECK(select_sgd_kernel(DType::f32).name == expected_f32(table<SgdKernel>()));
  CHECK(&select_sgd_kernel(DType::bf16) == &select_sgd_kernel(DType::f32));
  CHECK(select_adamw_kernel(DType::f64).name == std::string("adamw_f64_reference"));
  CHECK_THROWS_WITH_AS(select_sgd_kernel(DType::i64),
                       "[sgd] parameters: expected bf16, f16, f32 or f64, got i64", Error);
}
