// Parameters in bf16 and f16: updated as in f32, and rounded to nearest or by chance.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "quern/nn/embedding.h"
#include "quern/ops/ops.h"
#include "quern/optim/optim.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::optim;

namespace {

using Make = std::function<std::unique_ptr<Optimizer>(Tensor, bool by_chance)>;
struct Case {
  const char* name;
  Make make;
};

template <class Algorithm, class Options>
Case named(const char* name, Options options) {
  return {name, [options](Tensor p, bool by_chance) mutable -> std::unique_ptr<Optimizer> {
            options.stochastic_rounding = by_chance;
            return std::make_unique<Algorithm>(Tensors{p}, options);
          }};
}

/// Steps of 6e-4 or so: a fraction of what bf16 has between two numbers from 1 on,
/// and of what f16 has.
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      named<SGD>("sgd", SGDOptions{.lr = 1e-3, .momentum = 0.9}),
      named<Adam>("adam", AdamOptions{.lr = 6e-4}),
      named<AdamW>("adamw", AdamWOptions{.lr = 6e-4}),
      named<RMSprop>("rmsprop", RMSpropOptions{.lr = 6e-5}),
      named<Adagrad>("adagrad", AdagradOptions{.lr = 6e-4}),
      named<Adadelta>("adadelta", AdadeltaOptions{.lr = 0.2}),
      named<Adamax>("adamax", AdamaxOptions{.lr = 6e-4}),
      named<NAdam>("nadam", NAdamOptions{.lr = 6e-4}),
      named<RAdam>("radam", RAdamOptions{.lr = 1e-3}),
      named<ASGD>("asgd", ASGDOptions{.lr = 1e-3}),
      named<Rprop>("rprop", RpropOptions{.lr = 6e-4}),
      named<LAMB>("lamb", LAMBOptions{.lr = 4e-4}),
  };
  return all;
}

Tensor uniform(const Shape& shape, uint64_t seed, DType dtype, double low = -1, double high = 1) {
  Tensor t = empty(shape, dtype);
  Generator generator(seed);
  uniform_(t, low, high, generator);
  return t;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.nbytes())) == 0;
}

/// The distance from a number in 1..2 to the next.
double spacing(DType dtype) { return dtype == DType::bf16 ? 0x1p-7 : 0x1p-10; }

constexpr int64_t kRows = 96, kWidth = 43, kElements = kRows * kWidth;

}  // namespace

TEST_CASE("one step: what f32 gives, rounded to nearest, or to a neighbour and right on average") {
  for (const auto& [name, make] : cases())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(name);
      CAPTURE(dtype);
      const Tensor start = uniform({kRows, kWidth}, 1, dtype, 1.1, 1.9);
      const Tensor grad = uniform({kRows, kWidth}, 2, DType::f32, 0.5, 1);
      const auto stepped = [&](DType in, bool by_chance) {
        Tensor p = raw::clone(raw::to(start, in)).requires_grad_();
        const auto optimizer = make(p, by_chance);
        p.set_grad(in == DType::bf16 ? raw::to(grad, in) : raw::to(grad, DType::f32));
        if (in == DType::f32 && dtype == DType::bf16)
          p.set_grad(raw::to(raw::to(grad, DType::bf16), DType::f32));
        optimizer->step();
        return p.detach();
      };
      const Tensor exact = stepped(DType::f32, true);
      CHECK(same_bits(exact, stepped(DType::f32, false)));
      CHECK(same_bits(stepped(dtype, false), raw::to(exact, dtype)));

      const auto expected = exact.to_vector<double>();
      const auto got = stepped(dtype, true).to_vector<double>();
      double sum = 0;
      int up = 0, down = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double off = (got[i] - expected[i]) / spacing(dtype);
        REQUIRE(std::abs(off) < 1);
        sum += off;
        up += off > 0, down += off < 0;
      }
      // Each is off by a number of mean 0 and a deviation of no more than 1/2.
      CHECK(std::abs(sum / kElements) < 5 * 0.5 / std::sqrt(kElements));
      CHECK(up > kElements / 20);
      CHECK(down > kElements / 20);
    }
}

TEST_CASE("steps far below the spacing are lost to nearest, and add up by chance") {
  constexpr int kSteps = 160;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const bool by_chance : {false, true}) {
      Tensor p = ones({kElements}, dtype).requires_grad_();
      SGD optimizer({p}, {.lr = spacing(dtype) / 16, .stochastic_rounding = by_chance});
      for (int step = 0; step < kSteps; ++step) {
        p.set_grad(full({kElements}, -1, dtype == DType::f16 ? DType::f32 : dtype));
        optimizer.step();
      }
      double sum = 0;
      for (const double x : p.to_vector<double>()) sum += (x - 1) / spacing(dtype);
      // So many times one in sixteen goes up: a mean of 10 and a variance of 160/16·15/16.
      const double mean = sum / kElements, deviation = std::sqrt(kSteps / 16.0 * 15 / 16);
      if (by_chance) CHECK(std::abs(mean - 10) < 5 * deviation / std::sqrt(kElements));
      else CHECK(mean == 0);
    }
}

TEST_CASE("roundings follow place and step, not threads, and go on after loading") {
  for (const auto& [name, make] : cases())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CAPTURE(name);
      const DType grads = dtype == DType::f16 ? DType::f32 : dtype;
      const auto trained = [&](bool by_rows, int stops) {
        Tensor p = uniform({kRows, kWidth}, 1, dtype).requires_grad_();
        auto optimizer = make(p, true);
        for (int step = 0; step < 4; ++step) {
          const Tensor grad = uniform({kRows, kWidth}, 10 + static_cast<uint64_t>(step), grads);
          p.set_grad(by_rows ? sparse_rows(arange(kRows), grad, kRows) : grad);
          optimizer->step();
          if (step + 1 != stops) continue;
          const TensorDict state = optimizer->state_dict();
          optimizer = make(p, true);
          optimizer->load_state_dict(state);
        }
        return p.detach();
      };
      const Tensor expected = trained(false, 0);
      for (const int threads : {1, 2, 3}) {
        const test::Threads guard(threads);
        CHECK(same_bits(trained(false, 0), expected));
        CHECK(same_bits(trained(true, 0), expected));
      }
      CHECK(same_bits(trained(false, 2), expected));
      CHECK(same_bits(trained(true, 3), expected));
    }
}

TEST_CASE("rows that no step has keep their bytes, and those that it has steps of their own") {
  for (const auto& [name, make] : cases()) {
    CAPTURE(name);
    const Tensor start = uniform({kRows, kWidth}, 1, DType::bf16);
    Tensor p = raw::clone(start).requires_grad_();
    const auto optimizer = make(p, true);
    for (uint64_t step = 0; step < 3; ++step) {
      p.set_grad(sparse_rows(from_vector<int64_t>({3, 50}),
                             uniform({2, kWidth}, 7 + step, DType::bf16), kRows));
      optimizer->step();
    }
    for (int64_t row = 0; row < kRows; ++row)
      CHECK(same_bits(raw::select(p, 0, row), raw::select(start, 0, row)) ==
            (row != 3 && row != 50));
  }
}

TEST_CASE("idle rows of bf16 catch up with their roundings by chance") {
  // A quarter of the spacing in the first step,
  // and by momentum alone 1/(1 - 0.9) times that at last.
  Tensor p = ones({2, kElements}, DType::bf16).requires_grad_();
  SGD optimizer(
      {p}, {.lr = 0x1p-9, .momentum = 0.9, .idle = Idle::catch_up, .stochastic_rounding = true});
  p.set_grad(sparse_rows(from_vector<int64_t>({0, 1}), full({2, kElements}, -1, DType::bf16), 2));
  optimizer.step();
  for (int step = 0; step < 200; ++step) {
    p.set_grad(sparse_rows(from_vector<int64_t>({0}), zeros({1, kElements}, DType::bf16), 2));
    optimizer.step();
  }
  optimizer.catch_up();
  for (const int64_t row : {0, 1}) {
    double sum = 0;
    for (const double x : raw::select(p, 0, row).to_vector<double>()) sum += (x - 1) / 0x1p-7;
    // 2.5 spacings; each rounding has a deviation of 1/2 at most, and row 0 has 201.
    const double deviation = 0.5 * std::sqrt(row == 0 ? 201 : 2);
    CHECK(std::abs(sum / kElements - 2.5) < 5 * deviation / std::sqrt(kElements));
  }
}

TEST_CASE("an embedding on a table in f16 is trained by its rows") {
  const Tensor start = uniform({50, 8}, 1, DType::f16);
  nn::Embedding words(raw::clone(start), {.sparse = true});
  nn::Embedding in_f32(raw::to(start, DType::f32), {.sparse = true});
  SGD optimizer(words.parameters(), {.lr = 0.125}), other(in_f32.parameters(), {.lr = 0.125});
  const Tensor indices = from_vector<int64_t>({7, 3, 7, 49});
  for (nn::Embedding* e : {&words, &in_f32}) {
    const Tensor y = to((*e)(indices), DType::f32);
    sum(y * y).backward();
  }
  CHECK(words.weight.grad().is_sparse());
  CHECK(words.weight.grad().values().dtype() == DType::f32);
  optimizer.step(), other.step();
  for (const int64_t row : {0, 3, 7, 49}) {
    const Tensor now = raw::select(words.weight, 0, row);
    CHECK(same_bits(now, raw::select(start, 0, row)) == (row == 0));
    // The gradient of a conversion is one in f16:
    // 2·x has its bits, but twice that of row 7 is summed.
    CHECK(same_bits(now, raw::to(raw::select(in_f32.weight, 0, row), DType::f16)));
  }
  CHECK_THROWS_WITH_AS(words.weight.set_grad(zeros({50, 8}, DType::f16)),
                       "[set_grad] grad: expected f32 [50,8], got f16 [50,8]", Error);
}

TEST_CASE("state that others stored in fewer bits is widened") {
  Tensor p = ones({3}).requires_grad_();
  Adam optimizer({p});
  p.set_grad(ones({3}));
  optimizer.step();
  TensorDict halves;
  for (const auto& [name, t] : optimizer.state_dict())
    halves.insert(name, is_floating(t.dtype()) ? raw::to(t, DType::f16) : t);
  optimizer.load_state_dict(halves);
  CHECK(same_bits(optimizer.state_dict().at("0.exp_avg"),
                  raw::to(halves.at("0.exp_avg"), DType::f32)));
}
