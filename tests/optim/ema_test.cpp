#include "quern/optim/ema.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;
using optim::ModelEma;

TEST_CASE("the average follows its formula, and copies what is not floating") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor x = randn({3, 5}, dtype), count = zeros({}, DType::i64);
    ModelEma ema({{"x", x}, {"count", count}}, 0.9);
    auto expected = x.to_vector<double>();
    for (int step = 1; step <= 5; ++step) {
      raw::copy_(x, randn({3, 5}));
      raw::fill_(count, step);
      ema.update({{"x", x}, {"count", count}});
      const auto values = x.to_vector<double>(), got = ema.averages().at("x").to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i) {
        expected[i] += (1 - 0.9) * (values[i] - expected[i]);
        // Five steps, each a rounded factor, difference, product and sum of numbers below 8.
        const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        CHECK(std::abs(got[i] - expected[i]) <= 5 * 4 * 8 * u);
      }
      CHECK(ema.averages().at("count").item<int>() == step);
    }
    CHECK(ema.averages().at("x").dtype() == (dtype == DType::f64 ? DType::f64 : DType::f32));
  }
}

TEST_CASE("the average of any number of threads has the same bits, and goes on when loaded") {
  const test::Threads kept;
  const Tensor a = randn({100'003}), b = randn({100'003}), c = randn({100'003});
  Tensors results;
  for (int n : {1, 2, 3}) {
    set_num_threads(n);
    ModelEma ema({{"x", a}}, 0.99);
    ema.update({{"x", b}});
    ModelEma other({{"x", c}}, 0.99);
    other.load(ema.averages());
    other.update({{"x", c}});
    results.push_back(other.averages().at("x"));
  }
  for (size_t i : {1, 2})
    CHECK(std::memcmp(results[0].data_ptr(), results[i].data_ptr(),
                      static_cast<size_t>(results[0].nbytes())) == 0);
}

TEST_CASE("averages that do not fit are refused") {
  CHECK_THROWS_WITH_AS(ModelEma({}, 1.5), "[model_ema] decay: expected 0..1, got 1.5", Error);
  ModelEma ema({{"x", ones({2})}}, 0.5);
  CHECK_THROWS_WITH_AS(ema.load({}), "[model_ema] x: expected f32 [2], got none", Error);
  CHECK_THROWS_WITH_AS(ema.load({{"x", ones({3})}}), "[model_ema] x: expected f32 [2], got f32 [3]",
                       Error);
  CHECK_THROWS_AS(ema.load({{"x", ones({2})}, {"y", ones({2})}}), Error);
  CHECK_THROWS_AS(ema.update({{"x", ones({3})}}), Error);
  CHECK_THROWS_AS(ema.update({}), Error);
}
