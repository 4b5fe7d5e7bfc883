// What a tensor says of itself: requires_grad, is_leaf, grad, detach; and when ops record.
#include "gradcheck_helper.h"
#include "toy_ops.h"

using namespace quern;
using namespace quern::test;

TEST_CASE("leaves and outputs") {
  Tensor x = ones({2});
  CHECK(!x.requires_grad());
  CHECK(x.is_leaf());
  CHECK(x.requires_grad_().is_same(x));
  CHECK(x.requires_grad());
  CHECK(x.is_leaf());
  Tensor y = scale(x, 2);
  CHECK(y.requires_grad());
  CHECK(!y.is_leaf());
  CHECK(!y.grad().defined());
  x.requires_grad_(false);
  CHECK(!x.requires_grad());
  CHECK(!scale(x, 2).requires_grad());
  CHECK(!Tensor().requires_grad());
  CHECK(Tensor().is_leaf());

  CHECK_THROWS_WITH_AS(y.requires_grad_(),
                       "[requires_grad_] tensor: expected a leaf, got the output of scale", Error);
  CHECK_THROWS_WITH_AS(ones({2}, DType::i64).requires_grad_(),
                       "[requires_grad_] dtype: expected bf16, f16, f32 or f64, got i64", Error);
  CHECK_THROWS_WITH_AS(Tensor().requires_grad_(),
                       "[requires_grad_] tensor: expected a defined tensor, got undefined", Error);
}

TEST_CASE("a leaf frozen after the forward pass gets no gradient") {
  Tensor x = ones({}, DType::f64).requires_grad_();
  const Tensor y = scale(x, 2);
  x.requires_grad_(false);
  y.backward();
  CHECK(!x.grad().defined());
}

TEST_CASE("set_grad") {
  Tensor x = ones({2});
  x.set_grad({});
  CHECK(!x.grad().defined());
  const Tensor grad = ones({2});
  x.set_grad(grad);
  CHECK(x.grad().is_same(grad));
  CHECK(!x.requires_grad());
  x.requires_grad_();
  x.set_grad({});
  CHECK(!x.grad().defined());

  CHECK_THROWS_WITH_AS(x.set_grad(ones({3})), "[set_grad] grad: expected f32 [2], got f32 [3]",
                       Error);
  CHECK_THROWS_WITH_AS(x.set_grad(ones({2}, DType::bf16)),
                       "[set_grad] grad: expected f32 [2], got bf16 [2]", Error);
  CHECK_THROWS_WITH_AS(scale(x, 2).set_grad({}),
                       "[set_grad] tensor: expected a leaf, got the output of scale", Error);
  CHECK_THROWS_WITH_AS(Tensor().set_grad({}),
                       "[set_grad] tensor: expected a defined tensor, got undefined", Error);
}

TEST_CASE("an expanded gradient that was set is added to") {
  Tensor x = ones({3}, DType::f64).requires_grad_();
  x.set_grad(raw::expand(ones({1}, DType::f64), {3}));
  sum(scale(x, 2)).backward();
  CHECK(values(x.grad()) == std::vector<double>{3, 3, 3});
}

TEST_CASE("detach shares the elements and cuts the history") {
  const Tensor x = leaf({2}, 1);
  const Tensor cut = scale(x, 2).detach();
  CHECK(!cut.requires_grad());
  CHECK(cut.is_leaf());
  CHECK(x.detach().storage() == x.storage());
  sum(mul(cut, x)).backward();
  CHECK(max_abs_difference(x.grad(), cut) == 0);
  CHECK_THROWS_WITH_AS(Tensor().detach(),
                       "[detach] tensor: expected a defined tensor, got undefined", Error);
}

TEST_CASE("no history without gradient mode") {
  const Tensor x = leaf({2}, 1);
  {
    const NoGradGuard no_grad;
    CHECK(!grad_enabled());
    CHECK(!scale(x, 2).requires_grad());
    {
      const GradMode recording(true);
      CHECK(scale(x, 2).requires_grad());
    }
    CHECK(!grad_enabled());
  }
  CHECK(grad_enabled());
  CHECK(scale(x, 2).requires_grad());
}

TEST_CASE("register_hook needs a tensor that requires a gradient") {
  CHECK_THROWS_WITH_AS(ones({2}).register_hook([](const Tensor&) { return Tensor(); }),
                       "[register_hook] tensor: expected one that requires a gradient, got f32 [2]",
                       Error);
}
