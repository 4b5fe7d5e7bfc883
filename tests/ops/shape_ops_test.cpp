// reshape, flatten, squeeze, unsqueeze, permute, transpose, expand, slice, narrow, select.
#include "gradcheck_helper.h"
#include "quern/ops/expand.h"
#include "quern/ops/flatten.h"
#include "quern/ops/permute.h"
#include "quern/ops/reshape.h"
#include "quern/ops/slice.h"

using namespace quern;
using namespace quern::test;
using Values = std::vector<double>;

namespace {

Tensor counting(const Shape& shape) {
  return raw::reshape(arange(numel(shape), DType::f64), shape);
}
Values values(const Tensor& t) { return t.to_vector<double>(); }

/// gradcheck of f on leaves of this shape: dense, strided and, for four dimensions, channels_last.
void check_layouts(const Shape& shape, const std::function<Tensor(const Tensor&)>& f) {
  const auto unary = [&](const Tensors& in) { return f(in[0]); };
  check_gradients(unary, {leaf(shape, 1)});
  check_gradients(unary, {strided(random(shape, 1)).requires_grad_()});
  if (shape.size() == 4) check_gradients(unary, {leaf(shape, 1, MemoryFormat::channels_last)});
}

}  // namespace

TEST_CASE("reshape keeps the logical order, as a view where it can") {
  const Tensor x = counting({2, 3, 4});
  const Tensor y = reshape(x, {4, -1});
  CHECK(y.shape() == Shape{4, 6});
  CHECK(y.storage() == x.storage());
  CHECK(values(y) == values(x));
  const Tensor turned = permute(x, {2, 0, 1});
  CHECK(values(reshape(turned, {24})) == values(turned));
  CHECK(reshape(x, x.shape()).shape() == x.shape());
}

TEST_CASE("flatten") {
  const Tensor x = counting({2, 3, 4, 5});
  CHECK(flatten(x).shape() == Shape{2, 60});
  CHECK(flatten(x, 0).shape() == Shape{120});
  CHECK(flatten(x, 1, 2).shape() == Shape{2, 12, 5});
  CHECK(flatten(x, -2, -1).shape() == Shape{2, 3, 20});
  CHECK(flatten(x, 2, 2).shape() == x.shape());
  CHECK(flatten(counting({}), 0).shape() == Shape{1});
  CHECK(flatten(zeros({0, 3, 4})).shape() == Shape{0, 12});
  CHECK(values(flatten(x, 1, 2)) == values(x));
  const Tensor nhwc = raw::contiguous(x, MemoryFormat::channels_last);
  CHECK(values(flatten(nhwc)) == values(x));
  CHECK(flatten(empty({2, 3, 1, 1}, DType::f32, MemoryFormat::channels_last)).shape() ==
        Shape{2, 3});
}

TEST_CASE("squeeze and unsqueeze") {
  const Tensor x = counting({2, 1, 3});
  CHECK(squeeze(x, 1).shape() == Shape{2, 3});
  CHECK(squeeze(x, -3).shape() == Shape{2, 1, 3});
  CHECK(unsqueeze(x, 0).shape() == Shape{1, 2, 1, 3});
  CHECK(unsqueeze(x, -1).shape() == Shape{2, 1, 3, 1});
}

TEST_CASE("permute and transpose") {
  const Tensor x = counting({2, 3});
  CHECK(values(transpose(x, 0, 1)) == Values{0, 3, 1, 4, 2, 5});
  CHECK(values(permute(x, {-1, 0})) == Values{0, 3, 1, 4, 2, 5});
  CHECK(permute(counting({2, 3, 4}), {2, 0, 1}).shape() == Shape{4, 2, 3});
}

TEST_CASE("expand") {
  const Tensor x = counting({2, 1});
  CHECK(values(expand(x, {2, 3})) == Values{0, 0, 0, 1, 1, 1});
  CHECK(expand(x, {4, 2, 3}).shape() == Shape{4, 2, 3});
  CHECK(expand(x, {2, 3}).storage() == x.storage());
}

TEST_CASE("slice, narrow and select are views of a part") {
  const Tensor x = counting({3, 5});
  CHECK(values(slice(x, 1, 1, 5, 3)) == Values{1, 4, 6, 9, 11, 14});
  CHECK(values(slice(x, 0, -1, 100)) == Values{10, 11, 12, 13, 14});
  CHECK(slice(x, 0, 2, 1).shape() == Shape{0, 5});
  CHECK(values(narrow(x, 1, 2, 2)) == Values{2, 3, 7, 8, 12, 13});
  CHECK(narrow(x, 1, 5, 0).shape() == Shape{3, 0});
  CHECK(values(select(x, 1, -1)) == Values{4, 9, 14});
  CHECK(slice(x, 1, 1, 3).storage() == x.storage());
}

TEST_CASE("gradients of views") {
  check_layouts({2, 3, 2, 2}, [](const Tensor& x) { return reshape(x, {4, -1}); });
  check_layouts({2, 3, 2, 2}, [](const Tensor& x) { return flatten(x); });
  check_layouts({2, 1, 3}, [](const Tensor& x) { return squeeze(x, 1); });
  check_layouts({2, 1, 3}, [](const Tensor& x) { return squeeze(x, 0); });
  check_layouts({2, 3}, [](const Tensor& x) { return unsqueeze(x, -1); });
  check_layouts({2, 3, 2, 2}, [](const Tensor& x) { return permute(x, {2, 0, -1, 1}); });
  check_layouts({2, 3, 2}, [](const Tensor& x) { return transpose(x, 0, -1); });
  check_layouts({2, 1, 3}, [](const Tensor& x) { return expand(x, {2, 2, 4, 3}); });
  check_layouts({2, 1, 3}, [](const Tensor& x) { return expand(x, {2, 0, 3}); });
  check_layouts({5, 4}, [](const Tensor& x) { return slice(x, 0, 1, 5, 3); });
  check_layouts({2, 5, 2, 3}, [](const Tensor& x) { return slice(x, 1, -4, -1, 2); });
  check_layouts({3, 4}, [](const Tensor& x) { return slice(x, 0, 2, 1); });
  check_layouts({3, 4}, [](const Tensor& x) { return narrow(x, -1, 1, 2); });
  check_layouts({3, 4}, [](const Tensor& x) { return select(x, 1, -2); });
}

TEST_CASE("a part's gradient has the format of the whole") {
  const Tensor x = leaf({2, 3, 4, 5}, 1, MemoryFormat::channels_last);
  const Tensor y = slice(x, 3, 1, 3);
  y.backward(ones(y.shape(), DType::f64));
  CHECK(x.grad().is_dense_as(MemoryFormat::channels_last));
}

TEST_CASE("a gradient wider than a view's dtype passes it unrounded") {
  const Tensor x = ones({2, 3}, DType::f32).requires_grad_();
  const Tensor dy = random({3, 2}, 1, DType::f32);
  transpose(raw::to(x, DType::f32), 0, 1);
  permute(reshape(slice(transpose(x, 0, 1), 0, 0, 3), {3, 2}), {0, 1}).backward(dy);
  CHECK(same_bits(x.grad(), raw::transpose(dy, 0, 1)));
}

TEST_CASE("what shape ops refuse") {
  const Tensor x = ones({2, 3});
  CHECK_THROWS_WITH_AS(reshape(x, {4, -1}),
                       "[reshape] shape: expected sizes whose product divides 6 elements, got "
                       "[4,-1] for f32 [2,3]",
                       Error);
  CHECK_THROWS_WITH_AS(reshape(x, {7}),
                       "[reshape] shape: expected 6 elements, got [7] for f32 [2,3]", Error);
  CHECK_THROWS_WITH_AS(flatten(x, 1, 0), "[flatten] start: expected at most end (0), got 1", Error);
  CHECK_THROWS_AS(flatten(x, 2), Error);
  CHECK_THROWS_WITH_AS(permute(x, {0, 0}),
                       "[permute] order: expected each dimension once, got [0,0]", Error);
  CHECK_THROWS_AS(permute(x, {0}), Error);
  CHECK_THROWS_AS(transpose(x, 0, 2), Error);
  CHECK_THROWS_AS(expand(x, {2, 4}), Error);
  CHECK_THROWS_AS(expand(x, {3}), Error);
  CHECK_THROWS_WITH_AS(slice(x, 0, 0, 1, 0), "[slice] step: expected at least 1, got 0", Error);
  CHECK_THROWS_WITH_AS(narrow(x, 1, 2, 2),
                       "[narrow] length: expected start and length within the 3 elements of "
                       "dimension 1, got 2 and 2",
                       Error);
  CHECK_THROWS_AS(narrow(x, 1, -1, 2), Error);
  CHECK_THROWS_AS(narrow(x, 1, 1, INT64_MAX), Error);
  CHECK_THROWS_WITH_AS(select(x, 1, 3), "[select] index: expected -3..2, got 3", Error);
  const Tensor nothing;
  CHECK_THROWS_AS(reshape(nothing, {1}), Error);
  CHECK_THROWS_AS(flatten(nothing), Error);
  CHECK_THROWS_AS(squeeze(nothing, 0), Error);
  CHECK_THROWS_AS(unsqueeze(nothing, 0), Error);
  CHECK_THROWS_AS(permute(nothing, {0}), Error);
  CHECK_THROWS_AS(transpose(nothing, 0, 0), Error);
  CHECK_THROWS_AS(expand(nothing, {1}), Error);
  CHECK_THROWS_AS(slice(nothing, 0, 0, 0), Error);
  CHECK_THROWS_AS(narrow(nothing, 0, 0, 0), Error);
  CHECK_THROWS_AS(select(nothing, 0, 0), Error);
}
