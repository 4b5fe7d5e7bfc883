// Idle::catch_up: rows that were idle become those of a dense optimizer with the same gradients.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "larger.h"
#include "quern/optim/optim.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::optim;

namespace {

using Make = std::function<std::unique_ptr<Optimizer>(Tensor, Idle)>;

template <class Algorithm, class Options>
Make maker(Options options) {
  return [=](Tensor param, Idle idle) {
    Options o = options;
    o.idle = idle;
    return std::make_unique<Algorithm>(Tensors{param}, o);
  };
}

struct Case {
  std::string_view name;
  Make make;
};
/// Without momentum, Adam leaves the weights of idle rows alone, and v shrinks in one go.
constexpr std::string_view kStays = "no momentum";

const Case kSgd[] = {
    {"weight decay", maker<SGD>(SGDOptions{.lr = 0.05, .weight_decay = 0.02})},
    {"momentum", maker<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9})},
    {"dampening",
     maker<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.02})},
    {"nesterov",
     maker<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.02, .nesterov = true})},
};
const Case kAdam[] = {
    {"adam", maker<Adam>(AdamOptions{.lr = 0.01})},
    {"large eps", maker<Adam>(AdamOptions{.lr = 0.01, .eps = 0.05})},
    {kStays, maker<Adam>(AdamOptions{.lr = 0.01, .beta1 = 0})},
    {"other betas", maker<Adam>(AdamOptions{.lr = 0.01, .beta1 = 0.95, .beta2 = 0.98})},
    {"adamw", maker<AdamW>(AdamWOptions{.lr = 0.01, .weight_decay = 0.1})},
};

Tensor uniform(const Shape& shape, uint64_t seed, DType dtype) {
  Tensor t = empty(shape, dtype);
  Generator generator(seed);
  uniform_(t, -1, 1, generator);
  return t;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.nbytes())) == 0;
}

constexpr int64_t kRows = 6, kWidth = 5;

/// A table whose row r is touched every `often`ʳ steps or so, and one that has the same gradients
/// densely.
struct Pair {
  Tensor dense, table;
  std::unique_ptr<Optimizer> by_all, by_rows;
  RandomStream random{1, 2};

  Pair(const Make& make, DType dtype)
      : dense(uniform({kRows, kWidth}, 1, dtype)), table(raw::clone(dense)) {
    by_all = make(dense.requires_grad_(), Idle::lazy);
    by_rows = make(table.requires_grad_(), Idle::catch_up);
  }
  void step(uint64_t seed, double often) {
    std::vector<int64_t> rows;
    double chance = 1;
    for (int64_t row = 0; row < kRows; ++row, chance /= often)
      if (random.uniform(0, 1) < chance) rows.push_back(row);
    const auto n = static_cast<int64_t>(rows.size());
    const Tensor grad =
        sparse_rows(from_vector(rows), uniform({n, kWidth}, seed, table.dtype()), kRows);
    dense.set_grad(grad.to_dense());
    table.set_grad(grad);
    by_all->step();
    by_rows->step();
  }
};

/// The largest difference, beside the largest number.
double off(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double most = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    most = test::larger(most, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return most / size;
}

}  // namespace

TEST_CASE("rows that were idle for any time catch up with the dense optimizer") {
  constexpr int kSteps = 3000;
  // A step rounds a few numbers of the size of the weight, which momentum repeats ten times.
  constexpr double kBound = kSteps * 40 * 0x1p-53;
  for (const auto& cases : {std::span<const Case>(kSgd), std::span<const Case>(kAdam)})
    for (const auto& [name, make] : cases)
      for (const bool schedule : {false, true}) {
        CAPTURE(name);
        Pair pair(make, DType::f64);
        const double rate = pair.by_all->lr();
        for (uint64_t step = 0; step < kSteps; ++step) {
          if (schedule)
            for (Optimizer* optimizer : {pair.by_all.get(), pair.by_rows.get()})
              optimizer->set_lr(rate * (1 + std::cos(0.01 * static_cast<double>(step))));
          pair.step(step, 3);
        }
        if (name != kStays)
          CHECK(off(pair.table, pair.dense) > 1e-6);  // the last row was idle for hundreds of steps
        CHECK_THROWS_WITH(pair.by_rows->state_dict(), doctest::Contains("catch_up() brings them"));
        pair.by_rows->catch_up();
        CHECK(off(pair.table, pair.dense) < kBound);
        const TensorDict state = pair.by_rows->state_dict();
        for (const auto& [key, tensor] : pair.by_all->state_dict())
          CHECK(off(state.at(key), tensor) < kBound);
      }
}

TEST_CASE("Adam's rows that were idle for up to 200 steps have the dense optimizer's bits") {
  for (const auto& [name, make] : kAdam)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      CAPTURE(name);
      if (name == kStays) continue;
      Pair pair(make, dtype);
      for (uint64_t step = 0; step < 200; ++step) pair.step(step, 2);
      CHECK_FALSE(same_bits(pair.table, pair.dense));
      pair.by_rows->catch_up();
      CHECK(same_bits(pair.table, pair.dense));
    }
}

TEST_CASE("rows are brought up to date when they are asked for, and no others") {
  for (const auto& cases : {std::span<const Case>(kSgd), std::span<const Case>(kAdam)})
    for (const auto& [name, make] : cases) {
      CAPTURE(name);
      Pair pair(make, DType::f64);
      const auto grad = [&](const std::vector<int64_t>& rows) {
        const auto n = static_cast<int64_t>(rows.size());
        return sparse_rows(from_vector(rows), uniform({n, kWidth}, 3, DType::f64), kRows);
      };
      for (const auto& rows : {std::vector<int64_t>{0, 1, 2, 3}, {0}, {0}, {0}, {0}}) {
        pair.dense.set_grad(grad(rows).to_dense());
        pair.table.set_grad(grad(rows));
        pair.by_all->step(), pair.by_rows->step();
      }
      const Tensor before = raw::clone(pair.table);
      const uint64_t version = pair.table.version();
      pair.by_rows->catch_up(pair.table, from_vector<int64_t>({3, 1, 1, 3}, {2, 2}));
      CHECK(pair.table.version() > version);
      for (const int64_t row : {1, 3}) {
        const Tensor now = raw::select(pair.table, 0, row);
        CHECK(off(now, raw::select(pair.dense, 0, row)) < 1e-14);
        if (name != kStays) CHECK_FALSE(same_bits(now, raw::select(before, 0, row)));
      }
      CHECK(same_bits(raw::select(pair.table, 0, 2), raw::select(before, 0, 2)));
      // A dense gradient finds all rows up to date.
      const Tensor all = uniform({kRows, kWidth}, 4, DType::f64);
      pair.dense.set_grad(all), pair.table.set_grad(all);
      pair.by_all->step(), pair.by_rows->step();
      CHECK(off(pair.table, pair.dense) < 1e-14);
      CHECK_NOTHROW(pair.by_rows->state_dict());
    }
}

TEST_CASE("training that catches up goes on from a saved state, and on any number of threads") {
  const test::Threads kept;
  for (const auto& [name, make] : kAdam) {
    CAPTURE(name);
    Tensor first;
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      Pair straight(make, DType::f32);
      for (uint64_t step = 0; step < 20; ++step) straight.step(step, 2);
      straight.by_rows->catch_up();
      Pair resumed(make, DType::f32);
      raw::copy_(resumed.table, straight.table);
      resumed.by_rows->load_state_dict(straight.by_rows->state_dict());
      resumed.random = straight.random;
      for (uint64_t step = 20; step < 40; ++step) straight.step(step, 2), resumed.step(step, 2);
      CHECK(same_bits(straight.table, resumed.table));
      if (!first.defined()) first = straight.table;
      CHECK(same_bits(straight.table, first));
    }
  }
}

TEST_CASE("what cannot catch up is refused by name") {
  const Tensor p = zeros({2, 3}).requires_grad_(), other = zeros({2, 3}),
               x = zeros({1}, DType::i64);
  CHECK_THROWS_WITH(Adam({p}, {.weight_decay = 0.1, .idle = Idle::catch_up}),
                    doctest::Contains("[adam] idle: expected no weight_decay"));
  CHECK_THROWS_WITH(AdamW({p}, {.beta1 = 0.9, .beta2 = 0.8, .idle = Idle::catch_up}),
                    doctest::Contains("[adamw] idle: expected beta1 less than the root of beta2"));
  SGD sgd({p}, {.momentum = 0.9, .idle = Idle::catch_up});
  CHECK_THROWS_WITH(sgd.catch_up(other, x), doctest::Contains("a parameter of this optimizer"));
  CHECK_THROWS_WITH(sgd.catch_up(p, full({1}, 2, DType::i64)), doctest::Contains("0..1"));
  Adagrad lazy({p});
  lazy.catch_up(p, x), lazy.catch_up();  // nothing to do
}
