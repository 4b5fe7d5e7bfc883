#include "quern/tensor/shape.h"

#include <doctest/doctest.h>

#include <limits>

using namespace quern;

TEST_CASE("shape: numel") {
  CHECK(numel({}) == 1);
  CHECK(numel({3, 4, 5}) == 60);
  CHECK(numel({3, 0, 5}) == 0);
  CHECK(numel({int64_t{1} << 59}) == int64_t{1} << 59);
}

TEST_CASE("shape: sizes that overflow or are negative are errors") {
  const int64_t big = int64_t{1} << 40;
  CHECK_THROWS_WITH_AS(numel({big, big}),
                       "[shape] sizes: expected a product below 2^60 elements, got "
                       "[1099511627776,1099511627776]",
                       Error);
  CHECK_THROWS_AS(numel({big, big, 0}), Error);
  CHECK_THROWS_AS(numel({0, big, big}), Error);
  CHECK_THROWS_AS(numel({int64_t{1} << 60}), Error);  // 2^63 bytes of f64
  CHECK_THROWS_AS(numel({std::numeric_limits<int64_t>::max()}), Error);
  // 2^64 + 2^32: a product that wraps to something harmless.
  CHECK_THROWS_AS(numel({(int64_t{1} << 32) + 1, int64_t{1} << 32}), Error);
  CHECK_THROWS_WITH_AS(numel({2, -3}), "[shape] sizes: expected none negative, got [2,-3]", Error);
  CHECK_THROWS_AS(numel({0, -3}), Error);
}

TEST_CASE("shape: at most eight dimensions") {
  CHECK(Shape{1, 2, 3, 4, 5, 6, 7, 8}.size() == 8);
  CHECK_THROWS_WITH_AS((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}),
                       "[shape] dimensions: expected at most 8, got 9", Error);
  Shape full = Shape::filled(8, 1);
  CHECK_THROWS_AS(full.push_back(1), Error);
  CHECK(full == Shape::filled(8, 1));
}

TEST_CASE("shape: insert and erase") {
  Shape shape{2, 3};
  shape.insert(0, 7);
  shape.insert(3, 8);
  shape.insert(2, 9);
  CHECK(shape == Shape{7, 2, 9, 3, 8});
  shape.erase(4);
  shape.erase(0);
  CHECK(shape == Shape{2, 9, 3});
  CHECK(to_string(shape) == "[2,9,3]");
  CHECK(to_string(Shape{}) == "[]");
}

TEST_CASE("shape: strides") {
  CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(contiguous_strides({}) == Strides{});
  CHECK(channels_last_strides({2, 3, 4, 5}) == Strides{60, 1, 15, 3});
  CHECK_THROWS_WITH_AS(channels_last_strides({2, 3}),
                       "[shape] channels_last: expected 4 dimensions, got [2,3]", Error);
}

TEST_CASE("shape: broadcasting") {
  CHECK(broadcast_shapes("add", {2, 3}, {2, 3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {5, 1, 3}, {4, 1}) == Shape{5, 4, 3});
  CHECK(broadcast_shapes("add", {4, 1}, {5, 1, 3}) == Shape{5, 4, 3});
  CHECK(broadcast_shapes("add", {}, {2, 0}) == Shape{2, 0});
  CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
  CHECK_THROWS_WITH_AS(
      broadcast_shapes("add", {2, 3}, {2}),
      "[add] shapes: expected equal sizes or 1 in each dimension from the last, got [2,3] and [2]",
      Error);
  CHECK_THROWS_AS(broadcast_shapes("add", {2}, {0}), Error);
}

TEST_CASE("shape: normalize_dim") {
  CHECK(normalize_dim("sum", 0, 3) == 0);
  CHECK(normalize_dim("sum", -1, 3) == 2);
  CHECK(normalize_dim("sum", -3, 3) == 0);
  CHECK_THROWS_WITH_AS(normalize_dim("sum", 3, 3), "[sum] dim: expected -3..2, got 3", Error);
  CHECK_THROWS_WITH_AS(normalize_dim("sum", -4, 3), "[sum] dim: expected -3..2, got -4", Error);
  CHECK_THROWS_AS(normalize_dim("sum", 0, 0), Error);
}
