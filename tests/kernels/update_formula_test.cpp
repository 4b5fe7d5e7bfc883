// The other records of ops/kernels/optim/update_kernel.h against the formula, element by element,
// and optimizers that use them over several steps.
#include <doctest/doctest.h>

#include "built_isa.h"
#include "larger.h"
#include "quern/ops/kernels/optim/update.h"
#include "quern/tensor/raw.h"
#include "update_check.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::optim;
using testing::check_all;

namespace {

/// Six steps of an optimizer against the oracle of every element; the rate halves after three.
template <class Algorithm, class Options>
void check_steps(Options options, double initial0 = 0, double initial1 = 0) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Tensor param = empty({3, 7}, dtype);
    for (int64_t i = 0; i < 21; ++i)
      raw::fill_(raw::select(raw::reshape(param, {21}), 0, i), testing::number(i, 1));
    std::vector<testing::Oracle> oracles;
    for (const double value : param.to_vector<double>()) {
      oracles.push_back(testing::oracle(dtype, value));
      oracles.back().state0 = oracles.back().c(initial0);
      oracles.back().state1 = oracles.back().c(initial1);
    }
    param.requires_grad_();
    Algorithm optimizer({param}, options);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) optimizer.set_lr(options.lr /= 2);
      const Tensor grad = empty({3, 7}, dtype);
      for (int64_t i = 0; i < 21; ++i)
        raw::fill_(raw::select(raw::reshape(grad, {21}), 0, i), testing::number(i, 5 + step));
      param.set_grad(grad);
      optimizer.step();
      const auto gradients = grad.to_vector<double>(), got = param.to_vector<double>();
      for (size_t i = 0; i < oracles.size(); ++i) {
        oracles[i].step(gradients[i], options);
        CAPTURE(step);
        CAPTURE(got[i]);
        CAPTURE(static_cast<double>(oracles[i].param.value));
        REQUIRE(oracles[i].param.covers(got[i]));
      }
    }
  }
}

}  // namespace

TEST_CASE("formula kernels keep to the formula") {
  for (const double decay : {0.0, 0.05}) {
    check_all(AdagradStep{.lr = 0.1, .eps = 1e-6, .l2 = decay},
              AdagradOptions{.lr = 0.1, .weight_decay = decay, .eps = 1e-6}, 3, 1);
    check_all(AdadeltaStep{.lr = 0.1, .rho = 0.9, .eps = 1e-3, .l2 = decay},
              AdadeltaOptions{.lr = 0.1, .rho = 0.9, .eps = 1e-3, .weight_decay = decay}, 3, 2);
    check_all(AdamaxStep{.step_size = 0.1 / (1 - std::pow(0.8, 4)),
                         .beta1 = 0.8,
                         .beta2 = 0.95,
                         .eps = 1e-6,
                         .l2 = decay},
              AdamaxOptions{0.1, 0.8, 0.95, 1e-6, decay}, 3, 2);
    const double eta = 0.1 / std::pow(1 + 0.2 * 0.1 * 3, 0.75);
    for (const double t0 : {1.0, 9.0})
      check_all(AsgdStep{.eta = eta, .mu = t0 == 1 ? 0.5 : 1, .decay = 1 - 0.2 * eta, .l2 = decay},
                ASGDOptions{0.1, 0.2, 0.75, t0, decay}, 3, 1);
  }
  check_all(RpropStep{.less = 0.5, .more = 1.25, .smallest = 0.2, .largest = 0.9},
            RpropOptions{0.1, 0.5, 1.25, 0.2, 0.9}, 3, 2);
}

TEST_CASE("dispatch takes the best formula kernel that the cap leaves") {
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<AdagradKernel>(), [](Isa isa) {
    const std::string unit(to_string(isa));
    CHECK(select_update<AdagradKernel>("adagrad", DType::f32).name == "adagrad_f32_" + unit);
    CHECK(select_update<RpropKernel>("rprop", DType::f32).name == "rprop_f32_" + unit);
  });
  CHECK(select_update<NAdamKernel>("nadam", DType::f64).name == std::string("nadam_f64_reference"));
}

TEST_CASE("optimizers by a formula keep to it from step to step") {
  for (const double decay : {0.0, 0.05}) {
    check_steps<Adagrad>(
        AdagradOptions{
            .lr = 0.1, .lr_decay = 0.1, .weight_decay = decay, .initial_accumulator_value = 0.5},
        0.5);
    check_steps<Adadelta>(AdadeltaOptions{.lr = 1, .eps = 1e-3, .weight_decay = decay});
    check_steps<Adamax>(AdamaxOptions{.lr = 0.1, .weight_decay = decay});
    check_steps<NAdam>(NAdamOptions{.lr = 0.1, .weight_decay = decay});
    for (const double beta2 : {0.999, 0.8})  // rectified from the 6th step on, and never
      check_steps<RAdam>(RAdamOptions{.lr = 0.1, .beta2 = beta2, .weight_decay = decay});
    check_steps<ASGD>(ASGDOptions{.lr = 0.1, .lambd = 0.1, .t0 = 2, .weight_decay = decay});
  }
}

TEST_CASE("rprop's steps grow and shrink") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Tensor param = zeros({3}, dtype).requires_grad_();
    Rprop optimizer({param}, {.lr = 0.5, .etaminus = 0.5, .etaplus = 2, .step_max = 1});
    const auto step = [&](double a, double b, double c) {
      param.set_grad(raw::to(from_vector<double>({a, b, c}), dtype));
      optimizer.step();
      return param.to_vector<double>();
    };
    using Values = std::vector<double>;
    CHECK(step(1, -1, 0) == Values{-0.5, 0.5, 0});
    CHECK(step(3, 2, -1) == Values{-1.5, 0.5, 0.5});   // twice as far; turned: stays
    CHECK(step(1, 1, -1) == Values{-2.5, 0.25, 1.5});  // no more than step_max
    CHECK(step(1, 1, 1) == Values{-3.5, -0.25, 1.5});
  }
}

TEST_CASE("lamb keeps to its formula") {
  // 20,001 elements: more than a chunk of the norms, and not a whole number of vectors.
  for (const DType dtype : {DType::f64, DType::f32})
    for (const int64_t n : {7, 20'001}) {
      const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
      const auto numbers = [&](int salt) {
        std::vector<double> x;
        for (int64_t i = 0; i < n; ++i)
          x.push_back(static_cast<double>(static_cast<float>(testing::number(i, salt))));
        return x;
      };
      std::vector<double> p = numbers(1), m(static_cast<size_t>(n)), v = m, u = m;
      Tensor param = raw::to(from_vector(p), dtype).requires_grad_();
      LAMB optimizer({param}, {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.2});
      for (int t = 1; t <= 5; ++t) {
        const std::vector<double> g = numbers(5 + t);
        param.set_grad(raw::to(from_vector(g), dtype));
        optimizer.step();
        double p_squared = 0, u_squared = 0;
        for (size_t i = 0; i < p.size(); ++i) {
          m[i] = 0.8 * m[i] + 0.2 * g[i];
          v[i] = 0.9 * v[i] + 0.1 * g[i] * g[i];
          const double root = std::sqrt(v[i] / (1 - std::pow(0.9, t)));
          u[i] = m[i] / (1 - std::pow(0.8, t)) / (root + 1e-6) + 0.2 * p[i];
          p_squared += p[i] * p[i], u_squared += u[i] * u[i];
        }
        const auto got = param.to_vector<double>();
        double worst = 0;
        for (size_t i = 0; i < p.size(); ++i) {
          p[i] -= 0.1 * std::sqrt(p_squared / u_squared) * u[i];
          worst = test::larger(worst, std::abs(got[i] - p[i]));
        }
        // A dozen roundings an element and a step, and n of f64 in each of two sums of squares, of
        // numbers that a step moves by less than 1.
        CHECK(worst <= t * (12 * unit + static_cast<double>(n) * 0x1p-53) * 2);
      }
    }
  Tensor nothing = zeros({3}).requires_grad_();
  LAMB optimizer({nothing}, {.lr = 0.5});
  nothing.set_grad(zeros({3}));
  optimizer.step();
  CHECK(nothing.to_vector<double>() == std::vector<double>(3));
  nothing.set_grad(ones({3}));  // a norm of 0: r = 1
  optimizer.step();
  CHECK(nothing.to_vector<double>()[0] < -0.1);
  CHECK_THROWS_AS(LAMB({nothing}, {.beta1 = 1}), Error);
}

TEST_CASE("what optimizers by a formula refuse") {
  Tensor p = zeros({4}).requires_grad_();
  CHECK_THROWS_WITH_AS(Adagrad({p}, {.lr_decay = -1}),
                       "[adagrad] lr_decay: expected a finite number of at least 0, got -1", Error);
  CHECK_THROWS_WITH_AS(Adadelta({p}, {.rho = 1.5}), "[adadelta] rho: expected at most 1, got 1.5",
                       Error);
  CHECK_THROWS_WITH_AS(Adamax({p}, {.beta2 = 1}),
                       "[adamax] beta1, beta2: expected less than 1, got 0.9, 1", Error);
  CHECK_THROWS_AS(NAdam({p}, {.momentum_decay = std::nan("")}), Error);
  CHECK_THROWS_AS(RAdam({p}, {.beta1 = 1}), Error);
  CHECK_THROWS_AS(ASGD({p}, {.lambd = -1}), Error);
  CHECK_THROWS_WITH_AS(Rprop({p}, {.etaminus = 1}),
                       "[rprop] etaminus, etaplus: expected less and more than 1, got 1, 1.2",
                       Error);
  CHECK_THROWS_AS(Rprop({p}).set_lr(-1), Error);
  CHECK_THROWS_WITH_AS(NAdam({p}).lr(1), "[nadam] group: expected less than 1, got 1", Error);
}
