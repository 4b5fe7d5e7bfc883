#include "quern/ops/dropout.h"

#include "gradcheck_helper.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

Tensor dropped(const Tensor& x, double p, uint64_t seed = 1) {
  Generator generator(seed);
  return dropout(x, p, true, generator);
}

}  // namespace

TEST_CASE("what is kept is scaled, the rest is zero, in the right proportion") {
  constexpr int64_t n = 100'000;
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto y = dropped(ones({n}, DType::f64), p).to_vector<double>();
    const auto zero = std::ranges::count(y, 0.0);
    CHECK(zero + std::ranges::count(y, 1 / (1 - p)) == n);
    // A binomial count: 5 standard deviations.
    CHECK(std::abs(static_cast<double>(zero) - p * n) < 5 * std::sqrt(n * p * (1 - p)));
  }
}

TEST_CASE("an infinite value that is dropped leaves zero") {
  const auto y = dropped(full({100}, INFINITY), 0.5).to_vector<double>();
  CHECK(std::ranges::count(y, 0.0) + std::ranges::count(y, INFINITY) == 100);
  CHECK(std::ranges::count(y, 0.0) > 0);
}

TEST_CASE("p = 1 drops everything") {
  const Tensor x = ones({10}).requires_grad_();
  const Tensor y = dropped(x, 1);
  CHECK(same_bits(y, zeros({10})));
  y.backward(ones({10}));
  CHECK(same_bits(x.grad(), zeros({10})));
}

TEST_CASE("outside training, and for p = 0, it is the identity and draws nothing") {
  const Tensor x = ones({10});
  Generator generator(1);
  CHECK(dropout(x, 0.5, false, generator).is_same(x));
  CHECK(dropout(x, 0, true, generator).is_same(x));
  CHECK(generator.next_stream() == 0);
}

TEST_CASE("the mask follows from the stream and the logical position") {
  const Tensor x = random({2, 3, 5, 7}, 1, DType::f32);
  const Tensor y = dropped(x, 0.4);
  const Tensor nhwc = dropped(raw::contiguous(x, MemoryFormat::channels_last), 0.4);
  CHECK(nhwc.is_dense_as(MemoryFormat::channels_last));
  CHECK(same_bits(nhwc, y));
  CHECK(same_bits(dropped(strided(x), 0.4), y));
  CHECK(same_bits(dropped(x, 0.4), y));
  CHECK(!same_bits(dropped(x, 0.4, 2), y));
  Generator generator(1);
  dropout(x, 0.4, true, generator);
  CHECK(!same_bits(dropout(x, 0.4, true, generator), y));
}

TEST_CASE("the same bits for any number of threads") {
  const test::Threads kept;
  const Tensor x = random({100'003}, 1, DType::bf16);
  const Tensor first = dropped(x, 0.3);
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    CHECK(same_bits(dropped(x, 0.3), first));
  }
}

TEST_CASE("bf16 is rounded once") {
  const Tensor x = random({100}, 1, DType::bf16);
  const auto y = dropped(x, 0.3).to_vector<float>(), v = x.to_vector<float>();
  for (size_t i = 0; i < v.size(); ++i)
    CHECK((y[i] == 0 ||
           y[i] == static_cast<float>(bfloat16(v[i] * static_cast<float>(1 / (1 - 0.3))))));
}

TEST_CASE("gradients of dropout") {
  const auto f = [](const Tensors& in) { return dropped(in[0], 0.4); };
  check_gradients(f, {leaf({4, 5}, 1)});
  check_gradients(f, {leaf({2, 3, 2, 2}, 1, MemoryFormat::channels_last)});
  check_gradients(f, {strided(random({4, 5}, 1)).requires_grad_()});
}

TEST_CASE("an empty tensor gives an empty one") {
  CHECK(dropped(zeros({0, 3}), 0.5).shape() == Shape{0, 3});
}

TEST_CASE("what dropout refuses") {
  CHECK_THROWS_WITH_AS(dropout(ones({2}), -0.1), "[dropout] p: expected 0..1, got -0.1", Error);
  CHECK_THROWS_WITH_AS(dropout(ones({2}), 1.5), "[dropout] p: expected 0..1, got 1.5", Error);
  CHECK_THROWS_AS(dropout(ones({2}), std::nan("")), Error);
  CHECK_THROWS_WITH_AS(dropout(ones({2}, DType::i64)),
                       "[dropout] x: expected a floating tensor, got i64 [2]", Error);
  CHECK_THROWS_WITH_AS(dropout(Tensor()), "[dropout] x: expected a floating tensor, got undefined",
                       Error);
}
