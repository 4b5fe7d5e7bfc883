// gradcheck agrees with right backward passes and finds wrong ones.
#include "gradcheck_helper.h"
#include "toy_ops.h"

using namespace quern;
using namespace quern::test;

namespace {

/// x² with a backward pass that gives dx(dy, x).
template <class F>
auto square(F dx) {
  return [=](const Tensors& in) {
    const Tensor& x = in[0];
    return record("square", zip(x, x, std::multiplies<>()), {x},
                  [=, x = SavedTensor("square", x)](const Tensor& dy, Needs) -> Tensors {
                    return {dx(dy, x.get())};
                  });
  };
}

Tensor right(const Tensor& dy, const Tensor& x) {
  return zip(dy, x, [](double d, double v) { return 2 * d * v; });
}

}  // namespace

TEST_CASE("right gradients pass, for any layout of the inputs") {
  for (const Tensor& x :
       {leaf({3, 4}, 1), leaf({2, 3, 2, 2}, 1, MemoryFormat::channels_last),
        strided(random({3, 4}, 1)).requires_grad_(), leaf({}, 1), leaf({0, 3}, 1)})
    CHECK_EQ(gradcheck(square(right), {x}), "");
  check_gradients([](const Tensors& in) { return mul(in[0], add(in[1], in[2])); },
                  {leaf({4}, 1), leaf({4}, 2), random({4}, 3)});
}

TEST_CASE("inputs and their gradients are left as they were") {
  const Tensor x = leaf({3}, 1);
  sum(x).backward();
  const Tensor copy = raw::clone(x);
  check_gradients(square(right), {x});
  CHECK(same_bits(x, copy));
  CHECK(values(x.grad()) == std::vector<double>{1, 1, 1});
}

TEST_CASE("wrong gradients are found") {
  const Tensor x = from_vector<double>({0.5, 1, 2}).requires_grad_();
  SUBCASE("off by a factor of 1 + 1e-5") {
    const auto off =
        square([](const Tensor& dy, const Tensor& v) { return scale(right(dy, v), 1 + 1e-5); });
    CHECK_EQ(gradcheck(off, {x}).substr(0, 28), "input 0 (f64 [3]), element 0");
  }
  SUBCASE("one element") {
    const auto off = square([](const Tensor& dy, const Tensor& v) {
      Tensor dx = right(dy, v);
      dx.out<double>()[2] += 1e-3;
      return dx;
    });
    CHECK_EQ(gradcheck(off, {x}).substr(0, 28), "input 0 (f64 [3]), element 2");
  }
  SUBCASE("NaN") {
    CHECK_NE(gradcheck(square([](const Tensor& dy, const Tensor&) {
                         return full(dy.shape(), std::nan(""), DType::f64);
                       }),
                       {x}),
             "");
  }
  SUBCASE("zero") {
    CHECK_NE(gradcheck(square([](const Tensor& dy, const Tensor&) { return zeros_like(dy); }), {x}),
             "");
  }
  SUBCASE("cut off") {
    CHECK_NE(
        gradcheck([](const Tensors& in) { return add(mul(in[0], in[0].detach()), in[0]); }, {x}),
        "");
  }
  SUBCASE("a backward that takes dy to be dense") {
    const auto dense_only = square([](const Tensor& dy, const Tensor& v) {
      return right(from_span(std::span<const double>(dy.data<double>(), 3), {3}), v);
    });
    const std::string message = gradcheck(dense_only, {x});
    CHECK(message.find("for a strided dy") != std::string::npos);
  }
}

TEST_CASE("what gradcheck refuses") {
  CHECK_THROWS_WITH_AS(gradcheck(square(right), {random({2}, 1, DType::f32).requires_grad_()}),
                       "[gradcheck] inputs: expected f64 leaves, got f32 [2]", Error);
  CHECK_THROWS_WITH_AS(gradcheck(square(right), {scale(leaf({2}, 1), 2)}),
                       "[gradcheck] inputs: expected f64 leaves, got f64 [2]", Error);
  CHECK_THROWS_WITH_AS(
      gradcheck([](const Tensors& in) { return raw::to(in[0], DType::f32); }, {leaf({2}, 1)}),
      "[gradcheck] f: expected an f64 result, got f32 [2]", Error);
}
