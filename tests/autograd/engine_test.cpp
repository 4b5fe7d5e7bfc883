// backward(): which gradients come out, in what order things happen, and what is refused.
#include "gradcheck_helper.h"
#include "toy_ops.h"

using namespace quern;
using namespace quern::test;
using Values = std::vector<double>;

TEST_CASE("a chain of ops") {
  const Tensor x = leaf({3}, 1), w = leaf({3}, 2);
  sum(mul(scale(x, 3), w)).backward();
  CHECK(max_abs_difference(x.grad(), zip(w, w, [](double a, double) { return 3 * a; })) == 0);
  CHECK(max_abs_difference(w.grad(), zip(x, x, [](double a, double) { return 3 * a; })) == 0);
}

TEST_CASE("a diamond passes each node once, with the sum of what its consumers give") {
  int passes = 0;
  const Tensor x = full({2}, 5, DType::f64).requires_grad_();
  const Tensor middle =
      record("middle", raw::clone(x), {x}, [&](const Tensor& dy, Needs) -> Tensors {
        ++passes;
        return {dy};
      });
  sum(add(scale(middle, 2), add(scale(middle, 3), middle))).backward();
  CHECK(passes == 1);
  CHECK(values(x.grad()) == Values{6, 6});
}

TEST_CASE("paths of unequal length to the same tensor") {
  // y = x·x + x, z = y·x: dz/dx = 3x² + 2x.
  const Tensor x = full({1}, 4, DType::f64).requires_grad_();
  const Tensor y = add(mul(x, x), x);
  mul(y, x).backward();
  CHECK(values(x.grad()) == Values{3 * 16 + 2 * 4});
}

TEST_CASE("a tensor used twice by one op") {
  const Tensor x = full({2}, 3, DType::f64).requires_grad_();
  sum(mul(x, x)).backward();
  CHECK(values(x.grad()) == Values{6, 6});
}

TEST_CASE("gradients add up over calls of backward") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  for (int call = 1; call <= 3; ++call) {
    sum(scale(x, 2)).backward();
    CHECK(values(x.grad()) == Values{2.0 * call, 2.0 * call});
  }
}

TEST_CASE("a leaf differentiates to itself") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  x.backward();
  x.backward();
  CHECK(x.grad().item() == 2);
}

TEST_CASE("backward of a given gradient") {
  const Tensor x = ones({3}, DType::f64).requires_grad_();
  const Tensor given = from_vector<double>({1, 2, 3});
  scale(x, 2).backward(given);
  CHECK(values(x.grad()) == Values{2, 4, 6});
  CHECK(values(given) == Values{1, 2, 3});
}

TEST_CASE("a leaf's gradient shares memory with nothing that the caller holds") {
  const Tensor x = ones({3}, DType::f64).requires_grad_(),
               y = ones({3}, DType::f64).requires_grad_();
  const Tensor given = from_vector<double>({1, 2, 3});
  add(x, y).backward(given);
  CHECK(x.grad().storage() != given.storage());
  CHECK(y.grad().storage() != given.storage());
  CHECK(x.grad().storage() != y.grad().storage());
  add(x, y).backward(given);
  CHECK(values(x.grad()) == Values{2, 4, 6});
  CHECK(values(y.grad()) == Values{2, 4, 6});
  CHECK(values(given) == Values{1, 2, 3});
}

TEST_CASE("a leaf's gradient takes over a buffer that nobody else holds") {
  const Tensor x = ones({3}, DType::f64).requires_grad_();
  std::weak_ptr<Storage> made;
  record("op", raw::clone(x), {x}, [&](const Tensor& dy, Needs) -> Tensors {
    Tensor dx = raw::clone(dy);
    made = dx.storage();
    return {dx};
  }).backward(ones({3}, DType::f64));
  CHECK(x.grad().storage() == made.lock());
}

TEST_CASE("a leaf's gradient has the leaf's dtype and format") {
  const auto format = MemoryFormat::channels_last;
  const Tensor x = random({2, 3, 4, 5}, 1, DType::bf16, format).requires_grad_();
  const Tensor given = random({2, 3, 4, 5}, 2, DType::f32);
  for (int call = 1; call <= 2; ++call) {
    record("op", raw::clone(x), {x}, [&](const Tensor&, Needs) -> Tensors {
      return {given};
    }).backward(ones(x.shape()));
    CHECK(x.grad().dtype() == DType::bf16);
    CHECK(x.grad().is_dense_as(format));
    // Rounded once, then doubled, which is exact.
    const Tensor once = raw::to(given, DType::bf16);
    CHECK(max_abs_difference(x.grad(),
                             zip(once, once, [=](double a, double) { return call * a; })) == 0);
  }
}

TEST_CASE("an expanded gradient becomes a dense one") {
  const Tensor x = ones({2, 3}, DType::f64).requires_grad_();
  sum(x).backward();
  CHECK(x.grad().is_dense_as(MemoryFormat::contiguous));
  sum(x).backward();
  CHECK(values(x.grad()) == Values(6, 2));
}

TEST_CASE("sums of gradients are made in the wider dtype") {
  // 1 + 2^-9 is no bf16.
  Tensor x = ones({1}, DType::f32).requires_grad_();
  const auto constant = [&](const Tensor& t) {
    return record("op", raw::clone(x), {x}, [t](const Tensor&, Needs) -> Tensors { return {t}; });
  };
  for (const bool bf16_first : {true, false}) {
    const Tensor one = constant(ones({1}, DType::bf16)), bit = constant(full({1}, 0x1p-9));
    x.set_grad({});
    (bf16_first ? add(one, bit) : add(bit, one)).backward();
    CHECK(x.grad().item() == 1 + 0x1p-9);
  }
}

TEST_CASE("dy comes in the output's dtype unless the op takes any") {
  const Tensor x = ones({2}, DType::bf16).requires_grad_();
  for (const auto wanted : {GradDType::of_output, GradDType::any}) {
    DType got = DType::boolean;
    record(
        "op", raw::clone(x), {x},
        [&](const Tensor& dy, Needs) -> Tensors {
          got = dy.dtype();
          return {dy};
        },
        wanted)
        .backward(ones({2}, DType::f32));
    CHECK(got == (wanted == GradDType::any ? DType::f32 : DType::bf16));
  }
}

TEST_CASE("needs tells which gradients are wanted") {
  const Tensor x = ones({2}, DType::f64).requires_grad_(), constant = ones({2}, DType::f64);
  bool looked = false;
  record("op", raw::clone(x), {constant, x, Tensor()},
         [&](const Tensor& dy, Needs needs) -> Tensors {
           CHECK(!needs[0]);
           CHECK(needs[1]);
           CHECK(!needs[2]);
           looked = true;
           return {Tensor(), dy, Tensor()};
         })
      .backward(ones({2}, DType::f64));
  CHECK(looked);
  CHECK(!constant.grad().defined());
}

TEST_CASE("an op with many inputs") {
  Tensors inputs;
  for (int i = 0; i < 100; ++i) inputs.push_back(ones({1}, DType::f64).requires_grad_(i != 70));
  record("op", ones({1}, DType::f64), inputs, [](const Tensor& dy, Needs needs) -> Tensors {
    CHECK(!needs[70]);
    return Tensors(100, dy);
  }).backward();
  CHECK(inputs[99].grad().item() == 1);
  CHECK(!inputs[70].grad().defined());
}

TEST_CASE("a graph of 200,000 nodes is differentiated and freed without recursion") {
  constexpr int kDepth = 200'000;
  const Tensor x = ones({}, DType::f64).requires_grad_();
  const auto deep = [&] {
    Tensor y = x;
    for (int i = 0; i < kDepth; ++i)
      y = record("op", raw::alias(x), {y}, [](const Tensor& dy, Needs) -> Tensors { return {dy}; });
    return y;
  };
  deep();  // freed without a backward
  deep().backward();
  CHECK(x.grad().item() == 1);
  deep().backward({}, true);
  CHECK(x.grad().item() == 2);
}

TEST_CASE("a deep ladder, where every node has two consumers") {
  constexpr int kDepth = 50;  // 2^50 paths
  const Tensor x = ones({}, DType::f64).requires_grad_();
  Tensor y = x;
  for (int i = 0; i < kDepth; ++i) y = add(y, y);
  y.backward();
  CHECK(x.grad().item() == 0x1p50);
}

TEST_CASE("the same bits in every run") {
  // Many consumers with gradients of very different size: the order of the sum shows in the last
  // bits.
  const auto run = [] {
    const Tensor x = leaf({4}, 3);
    Tensor y = x;
    for (int i = 0; i < 40; ++i) y = add(y, scale(x, std::pow(1.7, i % 13) * (i % 2 ? 1 : -1)));
    sum(y).backward();
    return x.grad();
  };
  const Tensor first = run();
  std::vector<Tensor> ballast;  // moves the addresses
  for (int i = 0; i < 10; ++i) {
    ballast.push_back(scale(leaf({5}, 1), 2));
    CHECK(same_bits(run(), first));
  }
}

TEST_CASE("hooks see the whole gradient and may replace it") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  const Tensor middle = scale(x, 1);
  Values seen;
  middle.register_hook([&](const Tensor& grad) {
    seen = values(grad);
    return Tensor();
  });
  middle.register_hook([](const Tensor& grad) { return scale(grad, 10); });
  x.register_hook([](const Tensor& grad) { return add(grad, ones({2}, DType::f64)); });
  sum(add(scale(middle, 2), scale(middle, 3))).backward();
  CHECK(seen == Values{5, 5});
  CHECK(values(x.grad()) == Values{51, 51});
}

TEST_CASE("a hook of the root") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  const Tensor y = scale(x, 2);
  y.register_hook([](const Tensor& grad) { return scale(grad, 7); });
  y.backward();
  CHECK(x.grad().item() == 14);
}

TEST_CASE("a gradient kept by a hook is not changed later") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  Tensor kept;
  x.register_hook([&](const Tensor& grad) {
    if (!kept.defined()) kept = grad;
    return Tensor();
  });
  for (int i = 0; i < 3; ++i) sum(scale(x, 2)).backward();
  CHECK(values(kept) == Values{2, 2});
  CHECK(values(x.grad()) == Values{6, 6});
}

TEST_CASE("backward records nothing, and autocast is off in it") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  bool recording = true, casting = true;
  detail::thread_mode().autocast = true;
  record("op", raw::clone(x), {x}, [&](const Tensor& dy, Needs) -> Tensors {
    recording = grad_enabled();
    casting = detail::thread_mode().autocast;
    return {dy};
  }).backward(ones({2}, DType::f64));
  CHECK(!recording);
  CHECK(!casting);
  CHECK(grad_enabled());
  CHECK(detail::thread_mode().autocast);
  detail::thread_mode().autocast = false;
}

TEST_CASE("retain_graph keeps what was saved") {
  const Tensor x = full({}, 3, DType::f64).requires_grad_();
  const Tensor y = mul(x, x);
  y.backward({}, true);
  y.backward();
  CHECK(x.grad().item() == 12);
  CHECK_THROWS_WITH_AS(
      y.backward(),
      "[backward] graph: expected one not yet differentiated, got mul's saved tensors "
      "freed; pass retain_graph to the first backward()",
      Error);
}

TEST_CASE("a second backward through a shared part changes nothing") {
  const Tensor x = full({}, 3, DType::f64).requires_grad_(),
               w = full({}, 1, DType::f64).requires_grad_();
  const Tensor shared = mul(x, x);
  mul(shared, w).backward();
  CHECK_THROWS_AS(add(w, shared).backward(), Error);
  CHECK(w.grad().item() == 9);
  CHECK(x.grad().item() == 6);
}

TEST_CASE("an error in a backward pass leaves recording as it was") {
  const Tensor x = ones({}, DType::f64).requires_grad_();
  const Tensor y =
      record("op", raw::clone(x), {x}, [](const Tensor&, Needs) -> Tensors { fail("op", "no"); });
  CHECK_THROWS_WITH_AS(y.backward(), "[op] no", Error);
  CHECK(grad_enabled());
}

TEST_CASE("what backward refuses") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  const Tensor y = scale(x, 2);
  CHECK_THROWS_WITH_AS(y.backward(),
                       "[backward] gradient: expected one for a tensor that is not a scalar, got "
                       "undefined for f64 [2]",
                       Error);
  CHECK_THROWS_WITH_AS(y.backward(ones({3})),
                       "[backward] gradient: expected a floating tensor of shape [2], got f32 [3]",
                       Error);
  CHECK_THROWS_WITH_AS(y.backward(ones({2}, DType::i64)),
                       "[backward] gradient: expected a floating tensor of shape [2], got i64 [2]",
                       Error);
  CHECK_THROWS_WITH_AS(ones({}, DType::f32).backward(),
                       "[backward] tensor: expected one that requires a gradient, got f32 []",
                       Error);
  CHECK_THROWS_WITH_AS(Tensor().backward(),
                       "[backward] tensor: expected one that requires a gradient, got undefined",
                       Error);
  y.register_hook([](const Tensor&) { return ones({3}); });
  CHECK_THROWS_WITH_AS(
      y.backward(ones({2})),
      "[register_hook] gradient: expected a floating tensor of shape [2], got f32 [3]", Error);
}

TEST_CASE("an op that breaks its contract is told by its name") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  const auto giving = [&](Tensors grads) {
    return record("op", ones({}, DType::f64), {x}, [=](const Tensor&, Needs) { return grads; });
  };
  CHECK_THROWS_WITH_AS(giving({ones({3}, DType::f64)}).backward(),
                       "[op] backward: expected a floating gradient 0 of shape [2], got f64 [3]",
                       Error);
  CHECK_THROWS_WITH_AS(giving({ones({2}, DType::i64)}).backward(),
                       "[op] backward: expected a floating gradient 0 of shape [2], got i64 [2]",
                       Error);
  CHECK_THROWS_WITH_AS(giving({Tensor()}).backward(),
                       "[op] backward: expected a floating gradient 0 of shape [2], got undefined",
                       Error);
  CHECK_THROWS_WITH_AS(giving({}).backward(), "[op] backward: expected 1 gradients, got 0", Error);
  const auto recorded = [&](const Tensor& y) {
    return record("op", y, {x}, [](const Tensor& dy, Needs) -> Tensors { return {dy}; });
  };
  CHECK_THROWS_WITH_AS(recorded(x), "[op] output: expected a fresh floating tensor, got f64 [2]",
                       Error);
  CHECK_THROWS_WITH_AS(recorded(ones({2}, DType::i64)),
                       "[op] output: expected a fresh floating tensor, got i64 [2]", Error);
  CHECK_THROWS_WITH_AS(recorded(Tensor()),
                       "[op] output: expected a fresh floating tensor, got undefined", Error);
}

TEST_CASE("a hook that registers hooks has them run in the next pass") {
  const Tensor x = ones({2}, DType::f64).requires_grad_();
  int first = 0, later = 0;
  x.register_hook([&](const Tensor&) {
    ++first;
    for (int i = 0; i < 100; ++i)  // more than there is room for beside the first
      x.register_hook([&](const Tensor&) {
        ++later;
        return Tensor();
      });
    return Tensor();
  });
  scale(x, 2).backward(ones({2}, DType::f64));
  CHECK(first == 1);
  CHECK(later == 0);
  scale(x, 2).backward(ones({2}, DType::f64));
  CHECK(first == 2);
  CHECK(later == 100);
}
