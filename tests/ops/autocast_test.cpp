// The casts that ops make under autocast, and the copies of weights that are kept.
#include "quern/ops/autocast.h"

#include <thread>

#include "gradcheck_helper.h"
#include "quern/autograd/node.h"
#include "quern/ops/cat.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("autocast is off at first, per thread, and nests") {
  CHECK(!autocast_enabled());
  {
    const AutocastGuard on;
    CHECK(autocast_enabled());
    bool elsewhere = true;
    std::thread([&] { elsewhere = autocast_enabled(); }).join();
    CHECK(!elsewhere);
    {
      const AutocastGuard off(false);
      CHECK(!autocast_enabled());
    }
    CHECK(autocast_enabled());
  }
  CHECK(!autocast_enabled());
}

TEST_CASE("lower and widen cast f32 and bf16 only, and only under autocast") {
  const auto cast = [](Tensor (*policy)(const Tensor&), DType dtype) {
    return policy(ones({2}, dtype)).dtype();
  };
  for (const auto dtype : {DType::i64, DType::bf16, DType::f32, DType::f64}) {
    CHECK(cast(autocast::lower, dtype) == dtype);
    CHECK(cast(autocast::widen, dtype) == dtype);
  }
  const AutocastGuard on;
  CHECK(cast(autocast::lower, DType::f32) == DType::bf16);
  CHECK(cast(autocast::widen, DType::bf16) == DType::f32);
  for (const auto dtype : {DType::i64, DType::bf16, DType::f64})
    CHECK(cast(autocast::lower, dtype) == dtype);
  for (const auto dtype : {DType::i64, DType::f32, DType::f64})
    CHECK(cast(autocast::widen, dtype) == dtype);
  CHECK(!autocast::lower(Tensor()).defined());
  CHECK(!autocast::widen(Tensor()).defined());
}

TEST_CASE("a weight is cast once until it changes") {
  const Tensor w = random({4}, 1, DType::f32).requires_grad_();
  const AutocastGuard on;
  const Tensor first = autocast::lower(w);
  CHECK(same_bits(first, raw::to(w, DType::bf16)));
  CHECK(autocast::lower(w).storage() == first.storage());
  {
    const NoGradGuard no_grad;
    CHECK(autocast::lower(w).storage() == first.storage());
    CHECK(!autocast::lower(w).requires_grad());
  }
  raw::fill_(w.detach(), 2);  // through another handle
  const Tensor second = autocast::lower(w);
  CHECK(second.storage() != first.storage());
  CHECK(second.to_vector<float>() == std::vector<float>(4, 2));
}

TEST_CASE("two leaves on one storage keep a copy each") {
  const Tensor all = random({2, 3}, 1, DType::f32);
  const Tensor row = raw::select(all, 0, 1).requires_grad_();
  const Tensor column = raw::select(all, 1, 1).requires_grad_();
  const AutocastGuard on;
  for (int i = 0; i < 2; ++i) {
    CHECK(same_bits(autocast::lower(row), raw::to(row, DType::bf16)));
    CHECK(same_bits(autocast::lower(column), raw::to(column, DType::bf16)));
  }
}

TEST_CASE("inputs and intermediate results are not kept") {
  const Tensor x = random({4}, 1, DType::f32);
  const AutocastGuard on;
  CHECK(autocast::lower(x).storage() != autocast::lower(x).storage());
}

TEST_CASE("the kept copy dies with the weight, and does not keep it alive") {
  std::weak_ptr<Storage> weight, copy;
  const AutocastGuard on;
  {
    const Tensor w = random({4}, 1, DType::f32).requires_grad_();
    weight = w.storage();
    copy = autocast::lower(w).storage();
    CHECK(!copy.expired());
  }
  CHECK(weight.expired());
  CHECK(copy.expired());
}

TEST_CASE("the gradient of a weight is f32, over several forward and backward passes") {
  Tensor w = random({4}, 1, DType::f32).requires_grad_();
  const Tensor dy = random({4}, 2, DType::f32);
  for (int pass = 1; pass <= 2; ++pass) {  // the kept copy serves both
    Tensor y;
    {
      const AutocastGuard on;
      y = autocast::lower(w);
    }
    y.backward(dy);
    CHECK(w.grad().dtype() == DType::f32);
    const auto got = w.grad().to_vector<float>(), given = dy.to_vector<float>();
    for (size_t i = 0; i < given.size(); ++i) CHECK(got[i] == static_cast<float>(pass) * given[i]);
  }
}

TEST_CASE("widen passes its gradient back as bf16") {
  const Tensor x = random({4}, 1, DType::bf16).requires_grad_();
  const Tensor dy = random({4}, 2, DType::f32);
  {
    const AutocastGuard on;
    autocast::widen(x).backward(dy);
  }
  CHECK(same_bits(x.grad(), raw::to(dy, DType::bf16)));
}

TEST_CASE("backward runs without autocast") {
  const AutocastGuard on;
  const Tensor x = ones({}).requires_grad_();
  bool enabled = true;
  record("op", raw::clone(x), {x}, [&](const Tensor& dy, Needs) -> Tensors {
    enabled = autocast_enabled();
    return {dy};
  }).backward();
  CHECK(!enabled);
  CHECK(autocast_enabled());
}

TEST_CASE("many threads lower one weight") {
  const Tensor w = random({1000}, 1, DType::f32).requires_grad_();
  const Tensor expected = raw::to(w, DType::bf16);
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (int& ok : right)
    threads.emplace_back([&] {
      const AutocastGuard on;
      const NoGradGuard no_grad;
      ok = same_bits(autocast::lower(w), expected);
    });
  for (auto& thread : threads) thread.join();
  CHECK(right == std::vector<int>(4, 1));
}

TEST_CASE("cat takes the widest, under autocast too") {
  const AutocastGuard on;
  CHECK(cat({ones({2}, DType::bf16), ones({2})}).dtype() == DType::f32);
  CHECK(cat({ones({2}, DType::bf16), ones({2}, DType::bf16)}).dtype() == DType::bf16);
}
