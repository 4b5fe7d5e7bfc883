// Views and reshape, held to the definition: element by element against the tensor they are views
// of.
#include <doctest/doctest.h>

#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"

using namespace quern;

namespace {

using Ints = std::vector<int64_t>;

Ints ints(const Tensor& t) { return t.to_vector<int64_t>(); }

/// 0, 1, 2, ... in logical order.
Tensor counted(const Shape& shape) { return raw::reshape(arange(numel(shape)), shape); }

bool shares(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

}  // namespace

TEST_CASE("permute and transpose") {
  const Tensor t = counted({2, 3, 4});
  const Tensor p = raw::permute(t, {2, 0, -2});
  CHECK(p.shape() == Shape{4, 2, 3});
  CHECK(p.strides() == Strides{1, 12, 4});
  CHECK(shares(p, t));
  CHECK(ints(raw::transpose(counted({2, 3}), 0, -1)) == Ints{0, 3, 1, 4, 2, 5});
  CHECK_THROWS_WITH_AS(raw::permute(t, {0, 1}),
                       "[permute] order: expected 3 dimensions for i64 [2,3,4], got [0,1]", Error);
  CHECK_THROWS_WITH_AS(raw::permute(t, {0, 1, -2}),
                       "[permute] order: expected each dimension once, got [0,1,-2]", Error);
  CHECK_THROWS_AS(raw::permute(t, {0, 1, 3}), Error);
  CHECK_THROWS_AS(raw::transpose(t, 0, 3), Error);
}

TEST_CASE("slice") {
  const Tensor t = counted({2, 5});
  CHECK(ints(raw::slice(t, 1, 1, 3)) == Ints{1, 2, 6, 7});
  CHECK(ints(raw::slice(t, -1, -2, 5)) == Ints{3, 4, 8, 9});
  CHECK(ints(raw::slice(t, 1, 0, -1, 2)) == Ints{0, 2, 5, 7});
  CHECK(ints(raw::slice(t, 1, 1, 1'000'000'000'000, 3)) == Ints{1, 4, 6, 9});
  CHECK(ints(raw::slice(t, 1, 0, INT64_MAX, INT64_MAX)) == Ints{0, 5});
  CHECK(raw::slice(t, 1, 3, 2).shape() == Shape{2, 0});
  CHECK(raw::slice(t, 1, 5, 9).shape() == Shape{2, 0});
  CHECK(raw::slice(zeros({5, 0}), 0, 2, 5).shape() == Shape{3, 0});
  CHECK(raw::select(zeros({5, 0}), 0, 4).shape() == Shape{0});
  CHECK(ints(raw::slice(t, 1, INT64_MIN, 1)) == Ints{0, 5});
  CHECK(shares(raw::slice(t, 1, 1, 3), t));
  CHECK_THROWS_WITH_AS(raw::slice(t, 1, 0, 5, 0), "[slice] step: expected at least 1, got 0",
                       Error);
  CHECK_THROWS_AS(raw::slice(t, 2, 0, 1), Error);
}

TEST_CASE("select") {
  const Tensor t = counted({2, 3});
  CHECK(ints(raw::select(t, 0, -1)) == Ints{3, 4, 5});
  CHECK(ints(raw::select(t, 1, 1)) == Ints{1, 4});
  CHECK_THROWS_WITH_AS(raw::select(t, 1, 3), "[select] index: expected -3..2, got 3", Error);
  CHECK_THROWS_AS(raw::select(t, 1, -4), Error);
  CHECK_THROWS_AS(raw::select(zeros({0, 2}), 0, 0), Error);
  CHECK_THROWS_AS(raw::select(zeros({}), 0, 0), Error);
}

TEST_CASE("expand") {
  const Tensor t = counted({3, 1});
  const Tensor e = raw::expand(t, {2, 3, 2});
  CHECK(e.strides() == Strides{0, 1, 0});
  CHECK(ints(e) == Ints{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2});
  CHECK(raw::expand(zeros({1}), {0}).numel() == 0);
  CHECK_THROWS_WITH_AS(
      raw::expand(t, {2, 2}),
      "[expand] shape: expected the sizes of i64 [3,1] where they are not 1, got [2,2]", Error);
  CHECK_THROWS_AS(raw::expand(t, {3}), Error);
  CHECK_THROWS_AS(raw::expand(t, {3, -1}), Error);
  CHECK_THROWS_AS(raw::expand(t, {int64_t{1} << 40, int64_t{1} << 40, 3, 1}), Error);
}

TEST_CASE("squeeze and unsqueeze") {
  const Tensor t = counted({2, 1, 3});
  CHECK(raw::squeeze(t, 1).shape() == Shape{2, 3});
  CHECK(raw::squeeze(t, 0).shape() == Shape{2, 1, 3});
  for (int d = -3; d <= 2; ++d) {
    const Tensor u = raw::unsqueeze(raw::squeeze(t, 1), d);
    CHECK(u.dim() == 3);
    CHECK(u.size(d) == 1);
    CHECK(u.is_dense_as(MemoryFormat::contiguous));
    CHECK(ints(u) == ints(t));
  }
  CHECK(raw::unsqueeze(zeros({}), 0).shape() == Shape{1});
  CHECK_THROWS_AS(raw::unsqueeze(t, 4), Error);
}

TEST_CASE("as_strided and alias") {
  const Tensor t = counted({6});
  CHECK(ints(raw::as_strided(t, {2, 2}, {1, 3}, 1)) == Ints{1, 4, 2, 5});
  CHECK_THROWS_AS(raw::as_strided(t, {2, 2}, {1, 5}, 1), Error);
  CHECK(shares(raw::alias(t), t));
  CHECK_FALSE(raw::alias(t).is_same(t));
}

TEST_CASE("reshape: views where the strides allow it") {
  const Tensor t = counted({2, 3, 4});
  const auto viewed = [](const Tensor& t, const Shape& shape, const Strides& strides) {
    const Tensor r = raw::reshape(t, shape);
    CHECK(shares(r, t));
    CHECK(r.shape() == shape);
    CHECK(r.strides() == strides);
    CHECK(ints(r) == ints(t));
  };
  viewed(t, {24}, {1});
  viewed(t, {4, 1, 6}, {6, 6, 1});
  viewed(raw::permute(t, {1, 0, 2}), {3, 2, 2, 2}, {4, 12, 2, 1});
  viewed(raw::slice(t, 2, 0, 2), {6, 2}, {4, 1});
  viewed(raw::slice(t, 2, 0, 4, 2), {12}, {2});
  viewed(raw::expand(counted({1, 4}), {6, 4}), {2, 3, 4}, {0, 0, 1});
  viewed(raw::transpose(counted({2, 1}), 0, 1), {2}, {1});
  viewed(full({}, 3, DType::i64), {1, 1}, {1, 1});
  viewed(full({1, 1}, 3, DType::i64), {}, {});
}

TEST_CASE("reshape: copies where they don't") {
  const Tensor t = counted({2, 3, 4});
  for (const Tensor& strided : {raw::transpose(t, 0, 2), raw::slice(t, 1, 0, 2),
                                raw::permute(t, {2, 0, 1}), raw::slice(t, 2, 1, 4)}) {
    const Tensor r = raw::reshape(strided, {-1});
    CHECK_FALSE(shares(r, t));
    CHECK(ints(r) == ints(strided));
  }
  const Tensor expanded = raw::expand(counted({3, 1}), {3, 2});
  CHECK(ints(raw::reshape(expanded, {6})) == Ints{0, 0, 1, 1, 2, 2});
}

TEST_CASE("reshape: deduces -1, refuses what does not fit") {
  const Tensor t = counted({2, 3, 4});
  CHECK(raw::reshape(t, {-1, 6}).shape() == Shape{4, 6});
  CHECK(raw::reshape(t, {24, -1}).shape() == Shape{24, 1});
  CHECK(raw::reshape(zeros({0, 3}), {3, -1}).shape() == Shape{3, 0});
  CHECK(raw::reshape(zeros({0, 3}), {5, 0, 2}).shape() == Shape{5, 0, 2});
  CHECK_THROWS_WITH_AS(raw::reshape(t, {5, 5}),
                       "[reshape] shape: expected 24 elements, got [5,5] for i64 [2,3,4]", Error);
  CHECK_THROWS_WITH_AS(raw::reshape(t, {-1, -1}),
                       "[reshape] shape: expected at most one -1, got [-1,-1]", Error);
  CHECK_THROWS_WITH_AS(raw::reshape(t, {-1, 5}),
                       "[reshape] shape: expected sizes whose product divides 24 elements, got "
                       "[-1,5] for i64 [2,3,4]",
                       Error);
  CHECK_THROWS_AS(raw::reshape(zeros({0}), {-1, 0}), Error);
  CHECK_THROWS_AS(raw::reshape(t, {-2, -12}), Error);
  CHECK_THROWS_AS(raw::reshape(t, {int64_t{1} << 40, int64_t{1} << 40}), Error);
}

TEST_CASE("views of an undefined tensor are errors") {
  const Tensor none;
  CHECK_THROWS_WITH_AS(raw::reshape(none, {1}),
                       "[reshape] tensor: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_AS(raw::as_strided(none, {}, {}, 0), Error);
  CHECK_THROWS_AS(raw::permute(none, {}), Error);
  CHECK_THROWS_AS(raw::transpose(none, 0, 0), Error);
  CHECK_THROWS_AS(raw::slice(none, 0, 0, 0), Error);
  CHECK_THROWS_AS(raw::select(none, 0, 0), Error);
  CHECK_THROWS_AS(raw::expand(none, {}), Error);
  CHECK_THROWS_AS(raw::squeeze(none, 0), Error);
  CHECK_THROWS_AS(raw::unsqueeze(none, 0), Error);
  CHECK_THROWS_AS(raw::alias(none), Error);
}
