#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "optim/oracle.h"
#include "quern/autograd/node.h"
#include "quern/nn/safetensors.h"
#include "quern/optim/optim.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::optim;
using testing::Oracle;

namespace {

/// Values of this dtype and format, 0.1..1.1, so that second moments stay away from zero.
Tensor values(const Shape& shape, uint64_t seed, DType dtype = DType::f32,
              MemoryFormat format = MemoryFormat::contiguous) {
  Tensor t = empty(shape, dtype, format);
  Generator generator(seed);
  uniform_(t, 0.1, 1.1, generator);
  return t;
}

Tensor leaf(const Shape& shape, uint64_t seed, DType dtype = DType::f32,
            MemoryFormat format = MemoryFormat::contiguous) {
  return values(shape, seed, dtype, format).requires_grad_();
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = raw::contiguous(a), y = raw::contiguous(b);
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.nbytes())) == 0;
}

/// Six steps of an optimizer on `param` against the oracle of every element; the rate halves after
/// three.
template <class Algorithm, class Options>
void check_against_oracle(Tensor param, Options options) {
  std::vector<Oracle> oracles;
  for (double value : param.to_vector<double>())
    oracles.push_back(testing::oracle(param.dtype(), value));

  Algorithm optimizer({param}, options);
  for (uint64_t step = 0; step < 6; ++step) {
    if (step == 3) optimizer.set_lr(options.lr /= 2);
    const Tensor grad = values(param.shape(), 100 + step, param.dtype());
    param.set_grad(grad);
    optimizer.step();

    const auto gradients = grad.to_vector<double>(), actual = param.to_vector<double>();
    for (size_t i = 0; i < oracles.size(); ++i) {
      oracles[i].step(gradients[i], options);
      CAPTURE(step);
      CAPTURE(i);
      CAPTURE(actual[i]);
      CAPTURE(static_cast<double>(oracles[i].param.value));
      REQUIRE(oracles[i].param.covers(actual[i]));
    }
  }
}

/// The parameter after `steps` steps with the gradients of values(100), values(101), ...
void train(Optimizer& optimizer, Tensor param, uint64_t first, uint64_t steps) {
  for (uint64_t step = first; step < first + steps; ++step) {
    param.set_grad(values(param.shape(), 100 + step));
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("sgd follows the formula with every combination of options") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (double momentum : {0.0, 0.9})
      for (double dampening : {0.0, 0.3})
        for (double weight_decay : {0.0, 0.05})
          for (bool nesterov : {false, true}) {
            if (nesterov && (momentum == 0 || dampening != 0)) continue;
            CAPTURE(dtype);
            check_against_oracle<SGD>(leaf({3, 7}, 1, dtype),
                                      SGDOptions{0.1, momentum, dampening, weight_decay, nesterov});
          }
}

TEST_CASE("adamw follows the formula with every combination of options") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (double weight_decay : {0.0, 0.05})
      for (double beta1 : {0.0, 0.9})
        for (double eps : {1e-8, 1e-2}) {
          CAPTURE(dtype);
          check_against_oracle<AdamW>(leaf({3, 7}, 1, dtype),
                                      AdamWOptions{0.1, beta1, 0.95, eps, weight_decay});
        }
}

TEST_CASE("adam follows the formula with every combination of options") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (double weight_decay : {0.0, 0.05})
      for (double beta1 : {0.0, 0.9}) {
        CAPTURE(dtype);
        check_against_oracle<Adam>(leaf({3, 7}, 1, dtype),
                                   AdamOptions{0.1, beta1, 0.95, 1e-8, weight_decay});
      }
}

TEST_CASE("rmsprop follows the formula with every combination of options") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (double weight_decay : {0.0, 0.05})
      for (double momentum : {0.0, 0.9})
        for (double eps : {1e-8, 0.0316}) {
          CAPTURE(dtype);
          check_against_oracle<RMSprop>(leaf({3, 7}, 1, dtype),
                                        RMSpropOptions{0.01, 0.9, eps, momentum, weight_decay});
        }
}

TEST_CASE("rmsprop keeps a momentum buffer only where a group has momentum") {
  Tensor a = leaf({4}, 1), b = leaf({4}, 2);
  RMSprop plain({a});
  train(plain, a, 0, 1);
  CHECK(plain.state_dict().size() == 2);
  RMSprop both({{{a}, {}}, {{b}, {.momentum = 0.9}}});
  train(both, a, 0, 1);
  train(both, b, 0, 1);
  const TensorDict state = both.state_dict();
  CHECK(state.size() == 6);
  RMSprop other({{{a}, {}}, {{b}, {.momentum = 0.9}}});
  other.load_state_dict(state);
  CHECK(same_bits(other.state_dict().at("1.momentum_buffer"), state.at("1.momentum_buffer")));
  CHECK_THROWS_WITH_AS(RMSprop({a}, {.alpha = 1.1}), "[rmsprop] alpha: expected at most 1, got 1.1",
                       Error);
  CHECK_THROWS_AS(RMSprop({a}, {.eps = -1}), Error);
  CHECK_THROWS_AS(Adam({a}, {.beta1 = 1}), Error);
  CHECK_THROWS_WITH_AS(Adam({a}).lr(2), "[adam] group: expected less than 1, got 2", Error);
  CHECK_THROWS_AS(RMSprop({a}).set_lr(1, 1), Error);
}

TEST_CASE("optimizers arrive where PyTorch's do") {
  const TensorDict golden = load_safetensors(QUERN_GOLDENS "/optim.safetensors");
  const auto gradients = golden.at("gradients").to_vector<double>();
  const auto hold = [&](const char* name, auto make) {
    CAPTURE(name);
    Tensor param = raw::clone(golden.at("start")).requires_grad_();
    const int64_t n = param.numel();
    auto optimizer = make(Tensors{param});
    for (auto g = gradients.begin(); g != gradients.end(); g += n) {
      param.set_grad(from_vector<double>({g, g + n}));
      optimizer.step();
    }
    // Twenty steps of a dozen roundings each, of numbers below 4; eps may divide by 1e-8 or more,
    // which g·1e-3 is far above.
    const auto got = param.to_vector<double>(), expected = golden.at(name).to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::abs(got[i] - expected[i]) <= 20 * 12 * 4 * 0x1p-53);
  };
  hold("sgd",
       [](Tensors p) { return SGD(p, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}); });
  hold("sgd_nesterov", [](Tensors p) {
    return SGD(p, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  });
  hold("adamw", [](Tensors p) { return AdamW(p, {.lr = 0.05, .weight_decay = 0.1}); });
  hold("adam", [](Tensors p) { return Adam(p, {.lr = 0.05, .weight_decay = 0.1}); });
  hold("rmsprop", [](Tensors p) {
    return RMSprop(p,
                   {.lr = 0.01, .alpha = 0.9, .eps = 0.0316, .momentum = 0.9, .weight_decay = 0.1});
  });
  hold("rmsprop_plain", [](Tensors p) { return RMSprop(p, {.lr = 0.01}); });
  hold("adagrad", [](Tensors p) {
    return Adagrad(
        p, {.lr = 0.05, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.2});
  });
  hold("adagrad_plain", [](Tensors p) { return Adagrad(p); });
  hold("adadelta",
       [](Tensors p) { return Adadelta(p, {.lr = 0.5, .rho = 0.8, .weight_decay = 0.1}); });
  hold("adamax", [](Tensors p) { return Adamax(p, {.lr = 0.05, .weight_decay = 0.1}); });
  hold("nadam", [](Tensors p) {
    return NAdam(p, {.lr = 0.05, .weight_decay = 0.1, .momentum_decay = 0.01});
  });
  hold("radam", [](Tensors p) { return RAdam(p, {.lr = 0.05, .weight_decay = 0.1}); });
  const auto asgd = [](Tensors p) {
    return ASGD(p, {.lr = 0.05, .lambd = 0.01, .t0 = 5, .weight_decay = 0.1});
  };
  hold("asgd", asgd);
  hold("rprop", [](Tensors p) { return Rprop(p, {.lr = 0.05}); });

  Tensor param = raw::clone(golden.at("start")).requires_grad_();
  auto averaging = asgd({param});
  for (auto g = gradients.begin(); g != gradients.end(); g += param.numel()) {
    param.set_grad(from_vector<double>({g, g + param.numel()}));
    averaging.step();
  }
  const auto average = averaging.state_dict().at("0.ax").to_vector<double>();
  const auto expected = golden.at("asgd_average").to_vector<double>();
  for (size_t i = 0; i < average.size(); ++i)
    CHECK(std::abs(average[i] - expected[i]) <= 20 * 12 * 4 * 0x1p-53);
}

TEST_CASE("a parameter and its gradient may lie in memory in different orders") {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9};
  SUBCASE("channels_last parameter, contiguous gradient") {
    check_against_oracle<SGD>(leaf({2, 3, 4, 5}, 1, DType::f32, MemoryFormat::channels_last),
                              options);
  }
  SUBCASE("a strided view") {
    Tensor whole = values({6, 10}, 1);
    Tensor view = raw::slice(raw::transpose(whole, 0, 1), 0, 0, 10, 3).requires_grad_();
    check_against_oracle<SGD>(view, options);
    CHECK(same_bits(raw::slice(raw::transpose(whole, 0, 1), 0, 0, 10, 3), view));
  }
  SUBCASE("an empty one") { check_against_oracle<SGD>(leaf({0, 3}, 1), options); }
}

TEST_CASE("each group has its own options") {
  Tensor a = leaf({5}, 1), b = leaf({5}, 1), c = leaf({5}, 1), d = leaf({5}, 1);
  SGD both({{{a}, {.lr = 0.1}}, {{b}, {.lr = 0.2, .momentum = 0.5}}});
  SGD only_a({c}, {.lr = 0.1}), only_b({d}, {.lr = 0.2, .momentum = 0.5});
  CHECK(both.num_groups() == 2);
  for (uint64_t step = 0; step < 2; ++step) {
    a.set_grad(values({5}, step)), b.set_grad(values({5}, step));
    both.step();
    train(only_a, c, step - 100, 1);
    train(only_b, d, step - 100, 1);
    both.set_lr(0.3, 1);
    only_b.set_lr(0.3);
  }
  CHECK(same_bits(a, c));
  CHECK(same_bits(b, d));
  CHECK(both.lr(0) == 0.1);
  CHECK(both.lr(1) == 0.3);
}

TEST_CASE(
    "a parameter without a gradient is left alone, and its first step is the first with one") {
  Tensor trained = leaf({4}, 1), idle = leaf({4}, 2), before = raw::clone(idle);
  SGD optimizer({trained, idle},
                {.lr = 0.5, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
  train(optimizer, trained, 0, 2);
  CHECK(same_bits(idle, before));
  CHECK_FALSE(optimizer.state_dict().contains("1.momentum_buffer"));

  Tensor alone = raw::clone(idle).requires_grad_();
  SGD other({alone}, {.lr = 0.5, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
  train(optimizer, idle, 2, 1);
  train(other, alone, 2, 1);
  CHECK(same_bits(idle, alone));

  optimizer.zero_grad();
  CHECK_FALSE(idle.grad().defined());
  const Tensor kept = raw::clone(trained);
  optimizer.step();
  CHECK(same_bits(trained, kept));
}

TEST_CASE("a step moves on the version of what it changes") {
  Tensor param = leaf({4}, 1), idle = leaf({4}, 1);
  AdamW optimizer({param, idle});
  const uint64_t version = param.version(), idle_version = idle.version();
  train(optimizer, param, 0, 1);
  CHECK(param.version() > version);
  CHECK(idle.version() == idle_version);
}

TEST_CASE("any number of threads gives the same bits") {
  const test::Threads kept;
  Tensors sgd, adamw;
  for (int n : {1, 2, 3}) {
    set_num_threads(n);
    Tensor a = leaf({100'003}, 1), b = leaf({100'003}, 1);
    SGD by_sgd({a}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    AdamW by_adamw({b}, {.lr = 0.1});
    train(by_sgd, a, 0, 3);
    train(by_adamw, b, 0, 3);
    sgd.push_back(a), adamw.push_back(b);
  }
  for (size_t i : {1, 2}) {
    CHECK(same_bits(sgd[0], sgd[i]));
    CHECK(same_bits(adamw[0], adamw[i]));
  }
}

TEST_CASE_TEMPLATE("training goes on from a saved state with the same bits", Algorithm, SGD, AdamW,
                   Adam, RMSprop) {
  const auto make = [](Tensor param) {
    if constexpr (std::is_same_v<Algorithm, SGD>)
      return std::make_unique<SGD>(Tensors{param}, SGDOptions{.lr = 0.1, .momentum = 0.9});
    else if constexpr (std::is_same_v<Algorithm, AdamW>)
      return std::make_unique<AdamW>(Tensors{param}, AdamWOptions{.lr = 0.1});
    else if constexpr (std::is_same_v<Algorithm, Adam>)
      return std::make_unique<Adam>(Tensors{param}, AdamOptions{.lr = 0.1, .weight_decay = 0.1});
    else
      return std::make_unique<RMSprop>(Tensors{param}, RMSpropOptions{.lr = 0.1, .momentum = 0.9});
  };
  Tensor straight = leaf({2, 3, 4, 5}, 1, DType::f32, MemoryFormat::channels_last);
  const auto all = make(straight);
  train(*all, straight, 0, 3);

  Tensor resumed = raw::contiguous(raw::clone(straight)).requires_grad_();
  const auto second = make(resumed);
  second->load_state_dict(all->state_dict());
  train(*all, straight, 3, 3);
  train(*second, resumed, 3, 3);
  CHECK(same_bits(straight, resumed));
  CHECK(second->state_dict().at("0.step").template item<int64_t>() == 6);
}

TEST_CASE("a state that does not fit changes nothing") {
  Tensor param = leaf({4}, 1);
  AdamW optimizer({param});
  train(optimizer, param, 0, 2);
  const TensorDict good = optimizer.state_dict();
  CHECK(good.size() == 3);
  // With another tensor (undefined: none) of this name.
  const auto refused = [&](const char* message, const std::string& name, const Tensor& instead) {
    TensorDict bad;
    for (const auto& [key, tensor] : good)
      if (key != name) bad.insert(key, tensor);
    if (instead.defined()) bad.insert(name, instead);
    CHECK_THROWS_WITH_AS(optimizer.load_state_dict(bad), message, Error);
    CHECK(optimizer.state_dict().at("0.step").item<int64_t>() == 2);
  };
  refused("[adamw] state \"0.exp_avg\": expected f32 [4], got none", "0.exp_avg", {});
  refused("[adamw] state \"0.exp_avg_sq\": expected f32 [4], got f32 [5]", "0.exp_avg_sq",
          zeros({5}));
  refused("[adamw] state \"0.exp_avg\": expected f32 [4], got f64 [4]", "0.exp_avg",
          zeros({4}, DType::f64));
  refused("[adamw] state \"0.step\": expected a positive number, got 0", "0.step",
          zeros({}, DType::i64));
  refused("[adamw] state: expected that of 1 parameters with a step each, got \"0.exp_avg\"",
          "0.step", {});
  refused("[adamw] state: expected that of 1 parameters with a step each, got \"1.step\"", "1.step",
          ones({}, DType::i64));
}

TEST_CASE("optimizers refuse what they cannot train") {
  Tensor param = leaf({4}, 1);
  CHECK_THROWS_WITH_AS(SGD(Tensors{}),
                       "[sgd] parameters: expected at least one in group 0, got none", Error);
  CHECK_THROWS_WITH_AS(SGD(std::vector<Group<SGDOptions>>{}),
                       "[sgd] parameters: expected at least one, got none", Error);
  CHECK_THROWS_WITH_AS(AdamW({param, Tensor()}),
                       "[adamw] parameters[1]: expected a floating tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(AdamW({zeros({2}, DType::i64)}),
                       "[adamw] parameters[0]: expected a floating tensor, got i64 [2]", Error);
  CHECK_THROWS_WITH_AS(SGD({{{param}, {}}, {{param}, {}}}),
                       "[sgd] parameters[1]: expected each parameter once, got f32 [4] again",
                       Error);

  // Two handles of one memory would be updated twice, at once. Neighbours are welcome, interleaved
  // ones too.
  const Tensor matrix = zeros({3, 4});
  const auto part = [](const Tensor& view) {
    Tensor leaf = raw::alias(view);
    return leaf.requires_grad_();
  };
  CHECK_THROWS_WITH_AS(SGD({param, part(param)}),
                       "[sgd] parameters[1]: expected memory of its own, got f32 [4] that shares "
                       "elements with parameters[0]",
                       Error);
  CHECK_THROWS_AS(SGD({part(raw::slice(matrix, 1, 0, 2)), part(raw::select(matrix, 1, 1))}), Error);
  CHECK_THROWS_WITH_AS(
      SGD({part(raw::expand(zeros({1}), {4}))}),
      "[sgd] parameters[0]: expected no expanded dimension, got f32 [4] strides [0]", Error);
  CHECK_NOTHROW(SGD({part(raw::slice(matrix, 1, 0, 2)), part(raw::slice(matrix, 1, 2, 4)),
                     part(zeros({0})), part(zeros({0}))}));

  CHECK_THROWS_WITH_AS(SGD({param}, {.lr = -1}),
                       "[sgd] lr: expected a finite number of at least 0, got -1", Error);
  CHECK_THROWS_AS(SGD({param}, {.lr = std::nan("")}), Error);
  CHECK_THROWS_AS(SGD({param}, {.momentum = -0.1}), Error);
  CHECK_THROWS_AS(SGD({param}, {.weight_decay = -0.1}), Error);
  CHECK_THROWS_WITH_AS(
      SGD({param}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
      "[sgd] nesterov: expected a momentum and no dampening, got momentum 0.9, dampening 0.1",
      Error);
  CHECK_THROWS_AS(SGD({param}, {.nesterov = true}), Error);
  CHECK_THROWS_WITH_AS(AdamW({param}, {.beta2 = 1}),
                       "[adamw] beta1, beta2: expected less than 1, got 0.9, 1", Error);
  CHECK_THROWS_AS(AdamW({param}, {.eps = -1e-8}), Error);

  SGD optimizer({param});
  CHECK_THROWS_AS(optimizer.set_lr(-1), Error);
  CHECK_THROWS_WITH_AS(optimizer.set_lr(1, 1), "[sgd] group: expected less than 1, got 1", Error);
  CHECK(optimizer.lr() == 1e-3);
  CHECK_THROWS_WITH_AS(optimizer.lr(1), "[sgd] group: expected less than 1, got 1", Error);
  CHECK_THROWS_WITH_AS(AdamW({param}).lr(2), "[adamw] group: expected less than 1, got 2", Error);
}

TEST_CASE("optimizers take leaves only") {
  Tensor param = leaf({4}, 1);
  const Tensor y =
      record("twice", zeros({4}), {param}, [](const Tensor& dy, Needs) -> Tensors { return {dy}; });
  CHECK_THROWS_WITH_AS(
      SGD({y}), "[sgd] parameters[0]: expected a leaf, got the output of an op, f32 [4]", Error);
}
