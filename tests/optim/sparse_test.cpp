// Optimizers by row-sparse gradients: what they do to the rows that these have is what they do to a
// dense parameter, and no other row is touched.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "quern/nn/safetensors.h"
#include "quern/ops/embedding.h"
#include "quern/optim/optim.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::optim;

namespace {

using Make = std::unique_ptr<Optimizer> (*)(Tensor);
struct Named {
  const char* name;
  Make make;
};

template <class Algorithm, auto options>
Named named(const char* name) {
  return {name, [](Tensor p) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Algorithm>(Tensors{p}, options());
          }};
}

/// Every rule, with all of its terms in use.
const Named kOptimizers[] = {
    named<SGD,
          [] {
            return SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.1};
          }>("sgd"),
    named<SGD,
          [] {
            return SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
          }>("nesterov"),
    named<SGD, [] { return SGDOptions{.lr = 0.1}; }>("plain sgd"),
    named<Adam, [] { return AdamOptions{.lr = 0.1, .weight_decay = 0.1}; }>("adam"),
    named<AdamW, [] { return AdamWOptions{.lr = 0.1, .weight_decay = 0.1}; }>("adamw"),
    named<RMSprop, [] { return RMSpropOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}; }>(
        "rmsprop"),
    named<Adagrad,
          [] {
            return AdagradOptions{
                .lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.2};
          }>("adagrad"),
    named<Adadelta, [] { return AdadeltaOptions{.lr = 0.5, .weight_decay = 0.1}; }>("adadelta"),
    named<Adamax, [] { return AdamaxOptions{.lr = 0.1, .weight_decay = 0.1}; }>("adamax"),
    named<NAdam, [] { return NAdamOptions{.lr = 0.1, .weight_decay = 0.1}; }>("nadam"),
    named<LAMB, [] { return LAMBOptions{.lr = 0.1, .weight_decay = 0.1}; }>("lamb"),
    named<RAdam, [] { return RAdamOptions{.lr = 0.1, .weight_decay = 0.1}; }>("radam"),
    named<ASGD, [] { return ASGDOptions{.lr = 0.1, .lambd = 0.1, .t0 = 2, .weight_decay = 0.1}; }>(
        "asgd"),
    named<Rprop, [] { return RpropOptions{.lr = 0.1}; }>("rprop"),

};

Tensor uniform(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  Tensor t = empty(shape, dtype);
  Generator generator(seed);
  uniform_(t, -1, 1, generator);
  return t;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = raw::contiguous(a), y = raw::contiguous(b);
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.nbytes())) == 0;
}

Tensor rows_of(const Tensor& t, const std::vector<int64_t>& rows) {
  Shape shape = t.shape();
  shape[0] = static_cast<int64_t>(rows.size());
  const Tensor out = empty(shape, t.dtype());
  for (size_t i = 0; i < rows.size(); ++i)
    raw::copy_(raw::select(out, 0, static_cast<int64_t>(i)), raw::select(t, 0, rows[i]));
  return out;
}

}  // namespace

TEST_CASE("rows that are all touched fare as in a dense step") {
  for (const auto& [name, make] : kOptimizers)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      CAPTURE(std::string(name));
      Tensor dense = uniform({5, 37}, 1, dtype).requires_grad_();
      Tensor sparse = raw::clone(dense).requires_grad_();
      const auto by_all = make(dense), by_rows = make(sparse);
      for (uint64_t step = 0; step < 10; ++step) {
        const Tensor grad = uniform({5, 37}, 10 + step, dtype);
        dense.set_grad(grad);
        sparse.set_grad(sparse_rows(arange(5), grad, 5));
        by_all->step();
        by_rows->step();
        REQUIRE(same_bits(dense, sparse));
      }
      const TensorDict state = by_rows->state_dict();
      for (const auto& [key, tensor] : by_all->state_dict())
        CHECK(same_bits(tensor, state.at(key)));
    }
}

TEST_CASE("idle rows are neither read nor written") {
  const std::vector<int64_t> used{1, 4, 5}, idle{0, 2, 3, 6};
  for (const auto& [name, make] : kOptimizers) {
    CAPTURE(std::string(name));
    // The rows in use alone are the oracle. NaN in the others would spread to what reads them.
    Tensor table = uniform({7, 33}, 1);
    for (const int64_t row : idle) raw::fill_(raw::select(table, 0, row), std::nan(""));
    table.requires_grad_();
    Tensor alone = rows_of(table, used).requires_grad_();
    const Tensor before = rows_of(table, idle);
    const auto by_rows = make(table), by_all = make(alone);
    TensorDict fresh;
    for (uint64_t step = 0; step < 4; ++step) {
      const Tensor grad = uniform({3, 33}, 10 + step);
      table.set_grad(sparse_rows(from_vector(used), grad, 7));
      alone.set_grad(grad);
      by_rows->step();
      by_all->step();
      if (step == 0) fresh = by_rows->state_dict();
    }
    CHECK(same_bits(rows_of(table, used), alone));
    CHECK(same_bits(rows_of(table, idle), before));
    const TensorDict state = by_rows->state_dict();
    for (const auto& [key, tensor] : by_all->state_dict()) {
      if (tensor.dim() == 0) continue;
      CHECK(same_bits(rows_of(state.at(key), used), tensor));
      CHECK(same_bits(rows_of(state.at(key), idle), rows_of(fresh.at(key), idle)));
    }
  }
}

TEST_CASE("a strided table is trained by rows, too") {
  const Tensor values = uniform({6, 8}, 1), grad = uniform({2, 8}, 2);
  const Tensor whole = full({16, 6}, std::nan(""));
  Tensor view = raw::transpose(raw::slice(whole, 0, 0, 16, 2), 0, 1);
  raw::copy_(view, values);
  Tensor dense = raw::clone(values).requires_grad_();
  view.requires_grad_();
  for (Tensor* t : {&view, &dense}) {
    SGD optimizer({*t}, {.lr = 0.1});
    t->set_grad(sparse_rows(from_vector<int64_t>({0, 3}), grad, 6));
    optimizer.step();
  }
  CHECK(same_bits(view, dense));
}

TEST_CASE("a NaN spoils its own row, and a gradient without rows nothing") {
  for (const auto& [name, make] : kOptimizers) {
    CAPTURE(std::string(name));
    Tensor table = uniform({4, 5}, 1).requires_grad_();
    const Tensor before = raw::clone(table);
    const auto optimizer = make(table);
    table.set_grad(sparse_rows(zeros({0}, DType::i64), zeros({0, 5}), 4));
    optimizer->step();
    CHECK(same_bits(table, before));
    table.set_grad(sparse_rows(from_vector<int64_t>({2}), full({1, 5}, std::nan("")), 4));
    optimizer->step();
    for (const int64_t row : {0, 1, 3})
      CHECK(same_bits(rows_of(table, {row}), rows_of(before, {row})));
    for (const double x : rows_of(table, {2}).to_vector<double>()) CHECK(std::isnan(x));
  }
}

TEST_CASE("row-sparse training gives the same bits on any number of threads") {
  const test::Threads kept;
  constexpr int64_t kTable = 3'000, kLookups = 9'000;
  const Tensor indices = randint(0, kTable, {kLookups}), start = uniform({kTable, 65}, 1);
  const Tensor dy = uniform({kLookups, 65}, 2);
  for (const auto& [name, make] : kOptimizers) {
    CAPTURE(std::string(name));
    Tensor first;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      Tensor table = raw::clone(start).requires_grad_();
      const auto optimizer = make(table);
      for (int step = 0; step < 2; ++step) {
        optimizer->zero_grad();
        embedding(indices, table, {.sparse = true}).backward(dy);
        clip_grad_norm_({table}, 1);
        optimizer->step();
      }
      if (!first.defined()) first = table;
      CHECK(same_bits(table, first));
    }
  }
}

TEST_CASE("training by rows goes on from a saved state with the same bits") {
  const std::vector<int64_t> used{0, 3};
  for (const auto& [name, make] : kOptimizers) {
    CAPTURE(std::string(name));
    Tensor straight = uniform({5, 9}, 1).requires_grad_();
    const auto step = [&](Optimizer& optimizer, Tensor table, uint64_t seed) {
      table.set_grad(sparse_rows(from_vector(used), uniform({2, 9}, seed), 5));
      optimizer.step();
    };
    const auto all = make(straight);
    step(*all, straight, 1), step(*all, straight, 2);
    const TensorDict state = all->state_dict();
    if (state.size() == 0) continue;  // plain SGD
    Tensor resumed = raw::clone(straight).requires_grad_();
    const auto second = make(resumed);
    second->load_state_dict(state);
    step(*all, straight, 3), step(*second, resumed, 3);
    CHECK(same_bits(straight, resumed));
  }
}

TEST_CASE("clipping takes a row-sparse gradient") {
  Tensor dense = zeros({5, 2}).requires_grad_(), sparse = zeros({5, 2}).requires_grad_();
  const Tensor grad =
      sparse_rows(from_vector<int64_t>({1, 3}), from_vector<float>({3, 4, 5, 6}, {2, 2}), 5);
  sparse.set_grad(grad);
  dense.set_grad(grad.to_dense());
  CHECK(clip_grad_norm_({sparse}, 2) == clip_grad_norm_({dense}, 2));
  CHECK(sparse.grad().is_sparse());
  CHECK(same_bits(sparse.grad().to_dense(), dense.grad()));
}

namespace {

/// The step of the golden that SparseAdam is in: rows and their gradients.
struct GoldenStep {
  Tensor rows, values;
};
std::vector<GoldenStep> sparse_adam_steps(const TensorDict& golden) {
  const auto offsets = golden.at("sparse_adam.offsets").to_vector<int64_t>();
  std::vector<GoldenStep> steps;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto part = [&](const char* name) {
      return raw::clone(raw::slice(golden.at(name), 0, offsets[s], offsets[s + 1]));
    };
    steps.push_back({part("sparse_adam.rows"), part("sparse_adam.values")});
  }
  return steps;
}

}  // namespace

// PyTorch's SparseAdam adds its eps to √v before that is corrected for its bias, so that a step is
// a quotient by √v + eps where Adam's is one by √v + eps·√(1 - β₂ᵗ): Adam's is the larger one, by
// at most eps·(1 - √(1 - β₂ᵗ)) / √v of itself. Gradients don't depend on it, so that such
// differences add up and no more. An eps that is nothing beside √v leaves roundings alone.
TEST_CASE("Adam by rows arrives where PyTorch's SparseAdam does") {
  const TensorDict golden = load_safetensors(QUERN_GOLDENS "/optim.safetensors");
  // Ten steps of a dozen roundings each, of numbers below 4.
  constexpr double kRounding = 10 * 12 * 4 * 0x1p-53;
  for (const auto& [name, eps] :
       {std::pair("sparse_adam.end", 1e-8), {"sparse_adam.end_without_eps", 1e-30}}) {
    CAPTURE(std::string(name));
    Tensor table = raw::clone(golden.at("sparse_adam.start")).requires_grad_();
    const auto n = static_cast<size_t>(table.numel());
    Adam optimizer({table}, {.lr = 0.05, .eps = eps});
    std::vector<double> bound(n, kRounding);
    int64_t t = 0;
    for (const auto& [rows, values] : sparse_adam_steps(golden)) {
      const auto before = table.to_vector<double>();
      table.set_grad(sparse_rows(rows, values, table.size(0)));
      optimizer.step();
      const double moved = eps * (1 - std::sqrt(1 - std::pow(0.999, static_cast<double>(++t))));
      const auto after = table.to_vector<double>();
      const auto v = optimizer.state_dict().at("0.exp_avg_sq").to_vector<double>();
      for (size_t i = 0; i < n; ++i)
        if (after[i] != before[i])
          bound[i] += std::abs(after[i] - before[i]) * moved / std::sqrt(v[i]);
    }
    const auto got = table.to_vector<double>(), expected = golden.at(name).to_vector<double>();
    double largest = 0;
    for (size_t i = 0; i < n; ++i) {
      CHECK(std::abs(got[i] - expected[i]) <= bound[i]);
      largest = std::max(largest, std::abs(got[i] - expected[i]));
    }
    CHECK((largest > kRounding) == (eps == 1e-8));  // or the place of eps would not be seen
    const auto start = golden.at("sparse_adam.start").to_vector<double>();
    CHECK(std::equal(got.end() - 5, got.end(), start.end() - 5));  // the row that is in no step
  }
}
