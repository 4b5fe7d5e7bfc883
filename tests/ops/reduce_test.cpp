// Sums, means, maxima, topk and softmax along any dimensions, in both formats.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradcheck_helper.h"
#include "quern/ops/autocast.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/max.h"
#include "quern/ops/softmax.h"
#include "quern/ops/sum.h"
#include "quern/ops/topk.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr auto kFirst = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;

std::vector<double> list(const Tensor& t) { return t.to_vector<double>(); }
std::vector<int64_t> indices(const Tensor& t) { return t.to_vector<int64_t>(); }

/// x's elements along `dim`, for each of the others in logical order.
std::vector<std::vector<double>> rows_along(const Tensor& x, int dim) {
  const Tensor last = raw::contiguous(raw::transpose(raw::unsqueeze(x, x.dim()), dim, x.dim()));
  const auto all = list(last);
  const auto n = static_cast<size_t>(x.size(dim));
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < all.size(); i += n)
    rows.emplace_back(all.begin() + i, all.begin() + i + n);
  return rows;
}

/// Σ over dims, kept, in the simplest order.
Tensor naive_sum(const Tensor& x, const Dims& dims) {
  Tensor y = raw::to(x, DType::f64);
  for (int64_t dim : dims) {
    Shape shape = y.shape();
    shape[static_cast<int>(dim)] = 1;
    std::vector<double> sums;
    for (const auto& row : rows_along(y, static_cast<int>(dim))) {
      double total = 0;
      for (double value : row) total += value;
      sums.push_back(total);
    }
    y = from_vector(sums, shape);
  }
  return y;
}

const std::vector<Dims> kSubsets{{0},       {1},    {2},    {3},    {0, 2},
                                 {0, 2, 3}, {1, 3}, {2, 3}, {1, 2}, {0, 1, 2, 3}};

}  // namespace

TEST_CASE("sum and mean over any dimensions") {
  for (const auto format : {kFirst, kLast})
    for (const Dims& dims : kSubsets) {
      CAPTURE(to_string(dims));
      const Tensor x = random({3, 5, 4, 7}, 1, DType::f64, format);
      const Tensor expected = naive_sum(x, dims);
      const auto count = static_cast<double>(x.numel() / expected.numel());
      // At most 420 terms below 1 in another order, f64: 420·420 roundoffs of 2^-53.
      const double bound = 420 * 420 * 0x1p-53;
      for (const Tensor& t : {x, strided(x)}) {
        const Tensor kept = sum(t, dims, true), dropped = sum(t, dims);
        CHECK_LE(max_abs_difference(kept, expected), bound);
        CHECK_EQ(list(dropped), list(kept));
        CHECK_EQ(dropped.dim(), 4 - dims.size());
        CHECK(dropped.is_dense_as(kFirst));
        const auto means = list(mean(t, dims, true)), sums = list(kept);
        for (size_t i = 0; i < sums.size(); ++i) CHECK_EQ(means[i], sums[i] / count);
      }
    }
}

TEST_CASE("long sums of f32 and bf16 keep their digits") {
  // Blocked sums of n terms in 0..1 are off by at most (256 + 8 + n/4096 + 2) roundoffs of the
  // total (see tests/kernels/reduce_test.cpp) row-wise, 256 + n/256 column-wise; a plain f32 loop
  // by thousands.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor row = random({3, 200001}, 1, dtype, kFirst, 0, 1);
    const Tensor columns = raw::contiguous(raw::transpose(row, 0, 1));
    const Tensor expected = naive_sum(row, {1});
    for (const Tensor& got : {sum(raw::to(row, dtype), {1}), sum(columns, {0})}) {
      CHECK_EQ(got.dtype(), dtype);
      const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0;
      for (size_t i = 0; i < 3; ++i) {
        const double right = list(expected)[i];
        CHECK_LE(std::abs(list(got)[i] - right), (rounding + 700 * 0x1p-24) * right);
      }
    }
  }
}

TEST_CASE("sums of integers are exact i64, of nothing zero") {
  const int64_t big = (int64_t{1} << 53) + 1;
  CHECK_EQ(indices(sum(from_vector<int64_t>({big, 1, 1, big}, {2, 2}), {0})),
           std::vector<int64_t>{big + 1, big + 1});
  CHECK_EQ(sum(full({300}, 1, DType::boolean)).dtype(), DType::i64);
  CHECK_EQ(sum(full({300}, 1, DType::boolean)).item<int64_t>(), 300);
  CHECK_EQ(sum(full({70, 5}, 200, DType::u8)).item<int64_t>(), 70000);
  CHECK_EQ(list(sum(zeros({0, 3}), {0})), std::vector<double>{0, 0, 0});
  CHECK_EQ(sum(zeros({3, 0}), {0}).shape(), Shape{0});
  CHECK_EQ(sum(full({}, 4)).item(), 4);
}

TEST_CASE("a sum is a copy, also where there is nothing to add up") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::boolean})
    for (const auto& [shape, dims] : {std::pair<Shape, Dims>{{1}, {}},
                                      {{}, {}},
                                      {{3, 1, 2}, {1}},
                                      {{1, 4, 1, 1}, {0, 2, 3}},
                                      {{2, 0}, {0}}})
      for (const bool keepdim : {false, true}) {
        const Tensor x = ones(shape, dtype), y = sum(x, dims, keepdim);
        CHECK_NE(y.storage(), x.storage());
        raw::fill_(x, 0);
        CHECK_EQ(list(y), std::vector<double>(static_cast<size_t>(y.numel()), 1.0));
      }
}

TEST_CASE("a mean of nothing is NaN, and of no rows empty") {
  CHECK(std::isnan(mean(zeros({0, 3})).item()));
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor columns = mean(zeros({0, 3}, dtype), {0});
    CHECK_EQ(columns.shape(), Shape{3});
    for (const double value : list(columns)) CHECK(std::isnan(value));
  }
  CHECK_EQ(mean(zeros({0, 4}), {1}).shape(), Shape{0});
  CHECK_EQ(mean(zeros({4, 0, 2}), {0, 2}, true).shape(), Shape{1, 0, 1});
  Tensor x = zeros({0, 3}).requires_grad_();
  mean(x, {0}).backward(ones({3}));
  CHECK_EQ(x.grad().shape(), x.shape());
}

TEST_CASE("softmax, max and topk of no rows are empty") {
  CHECK_EQ(softmax(zeros({2, 0}), 1).shape(), Shape{2, 0});
  CHECK_EQ(log_softmax(zeros({0, 2}), 1).shape(), Shape{0, 2});
  CHECK_EQ(max(zeros({0, 2}), 1).values.shape(), Shape{0});
  CHECK_EQ(max(zeros({2, 0}), 0).indices.shape(), Shape{0});
  CHECK_EQ(topk(zeros({0, 2}), 1, 1).values.shape(), Shape{0, 1});
  CHECK_EQ(topk(zeros({2, 0}), 0, 1).values.shape(), Shape{2, 0});
  CHECK_THROWS_AS(max(zeros({2, 0}), 1), Error);
}

TEST_CASE("sum_to undoes a broadcast") {
  const Tensor t = random({4, 2, 3, 5}, 1);
  CHECK(raw::sum_to(t, {4, 2, 3, 5}).is_same(t));
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{3, 1}, Shape{2, 1, 1}, Shape{1, 2, 1, 5}}) {
    const Tensor got = raw::sum_to(t, shape);
    REQUIRE_EQ(got.shape(), shape);
    // <sum_to(t), v> = <t, expand(v)>, which have 120 terms below 1.
    const Tensor v = random(shape, 2);
    const auto a = list(got), b = list(v), c = list(t), d = list(raw::expand(v, t.shape()));
    double left = 0, right = 0;
    for (size_t i = 0; i < a.size(); ++i) left += a[i] * b[i];
    for (size_t i = 0; i < c.size(); ++i) right += c[i] * d[i];
    CHECK_LE(std::abs(left - right), 120 * 120 * 0x1p-53);
  }
}

TEST_CASE("max, argmax and topk along any dimension") {
  for (const auto format : {kFirst, kLast})
    for (const DType dtype :
         {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32, DType::u8})
      for (int dim = 0; dim < 4; ++dim) {
        Tensor x = empty({3, 5, 4, 17}, dtype, format);  // few values, so that there are ties
        Generator generator(3);
        Tensor values = empty({3, 5, 4, 17}, DType::f64);
        uniform_(values, 0, 6, generator);
        raw::copy_(x, raw::to(values, DType::i64));
        const auto rows = rows_along(x, dim);
        for (const Tensor& t : {x, strided(x)}) {
          const MaxResult got = max(t, dim);
          CHECK_EQ(got.values.dtype(), dtype);
          CHECK_EQ(indices(argmax(t, dim)), indices(got.indices));
          CHECK_EQ(indices(argmax(t, dim - 4, true)), indices(got.indices));
          const auto largest = list(got.values);
          const auto places = indices(got.indices);
          const TopkResult three = topk(t, 3, dim), low = topk(t, 3, dim, false);
          const auto top = rows_along(three.values, dim), top_at = rows_along(three.indices, dim);
          const auto bottom_at = rows_along(low.indices, dim);
          for (size_t r = 0; r < rows.size(); ++r) {
            std::vector<int64_t> order;
            for (size_t i = 0; i < rows[r].size(); ++i) order.push_back(static_cast<int64_t>(i));
            const auto by = [&](auto before) {
              std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
                return before(rows[r][static_cast<size_t>(i)], rows[r][static_cast<size_t>(j)]);
              });
              return std::vector<double>(order.begin(), order.begin() + 3);
            };
            CHECK_EQ(top_at[r], by(std::greater<>()));
            CHECK_EQ(places[r], order[0]);
            CHECK_EQ(largest[r], rows[r][static_cast<size_t>(order[0])]);
            for (size_t j = 0; j < 3; ++j)
              CHECK_EQ(top[r][j], rows[r][static_cast<size_t>(order[j])]);
            std::sort(order.begin(), order.end());
            CHECK_EQ(bottom_at[r], by(std::less<>()));
          }
        }
        CHECK(max(x, dim, true).values.is_dense_as(format));
      }
}

TEST_CASE("topk of long rows, few of them and many, in any order, with ties and NaN") {
  constexpr int64_t n = 1003;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const int order : {0, 1, 2}) {
      std::vector<double> values;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t rank = order == 0 ? i * 389 % n : order == 1 ? i : n - i;
        const bool nan = is_floating(dtype) && i % 250 == 40;
        values.push_back(nan ? std::nan("") : static_cast<double>(rank / 4));
      }
      const Tensor x = raw::to(from_vector(values), dtype);
      values = list(x);  // as the dtype holds them
      for (const bool largest : {true, false})
        for (const size_t k : {size_t{1}, size_t{5}, size_t{32}, size_t{33}, size_t{n}}) {
          std::vector<int64_t> expected;
          for (int64_t i = 0; i < n; ++i) expected.push_back(i);
          std::stable_sort(expected.begin(), expected.end(), [&](int64_t i, int64_t j) {
            const double a = values[static_cast<size_t>(largest ? i : j)];
            const double b = values[static_cast<size_t>(largest ? j : i)];
            return a > b || (std::isnan(a) && !std::isnan(b));
          });
          expected.resize(k);
          CAPTURE(k);
          CHECK(indices(topk(x, static_cast<int64_t>(k), 0, largest).indices) == expected);
        }
    }
}

TEST_CASE("NaN is the largest") {
  const Tensor x = from_vector<double>({1, std::nan(""), kInf, std::nan("")});
  CHECK(std::isnan(max(x, 0).values.item()));
  CHECK_EQ(argmax(x, 0).item<int64_t>(), 1);
  CHECK_EQ(indices(topk(x, 4, 0).indices), std::vector<int64_t>{1, 3, 2, 0});
  CHECK_EQ(indices(topk(x, 2, 0, false).indices), std::vector<int64_t>{0, 2});
}

TEST_CASE("softmax against its definition") {
  for (const auto format : {kFirst, kLast})
    for (int dim = 0; dim < 4; ++dim) {
      CAPTURE(dim);
      const Tensor x = random({3, 5, 4, 19}, 1, DType::f64, format, -5, 5);
      const Tensor y = softmax(x, dim), log_y = log_softmax(strided(x), dim - 4);
      CHECK_EQ(y.format(), format);
      const auto rows = rows_along(x, dim), got = rows_along(y, dim), logs = rows_along(log_y, dim);
      for (size_t r = 0; r < rows.size(); ++r) {
        double total = 0;
        for (double value : rows[r]) total += std::exp(value);
        for (size_t i = 0; i < rows[r].size(); ++i) {
          // Some ten roundings of numbers up to 10.
          CHECK_LE(std::abs(logs[r][i] - (rows[r][i] - std::log(total))), 100 * 0x1p-53);
          CHECK_LE(std::abs(got[r][i] - std::exp(rows[r][i]) / total), 100 * 0x1p-53);
        }
      }
    }
  CHECK_EQ(softmax(zeros({0, 3}), 1).shape(), Shape{0, 3});
}

TEST_CASE("short rows, some and many, have the bits of columns") {
  const auto turned = [](const Tensor& t) { return raw::contiguous(raw::transpose(t, 0, 1)); };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t n : {1, 2, 10, 24})
      for (const int64_t rows : {16, 63, 64, 65, 200}) {
        CAPTURE(n);
        CAPTURE(rows);
        const auto check = [&](auto f, const Tensor& dy) {
          const Tensor x = random({rows, n}, 3, dtype).requires_grad_();
          const Tensor columns = turned(x.detach()).requires_grad_();
          const Tensor y = f(x, 1), by_columns = f(columns, 0);
          y.backward(dy);
          by_columns.backward(y.dim() == 2 ? turned(dy) : dy);
          CHECK(list(y) == list(y.dim() == 2 ? turned(by_columns) : by_columns));
          CHECK(list(x.grad()) == list(turned(columns.grad())));
        };
        check([](const Tensor& t, int d) { return softmax(t, d); }, random({rows, n}, 4, dtype));
        check([](const Tensor& t, int d) { return log_softmax(t, d); },
              random({rows, n}, 5, dtype));
        check([](const Tensor& t, int d) { return max(t, d).values; }, random({rows}, 6, dtype));
      }
}

TEST_CASE("gradients") {
  for (const auto format : {kFirst, kLast}) {
    const Tensor x = leaf({2, 3, 4, 5}, 1, format);
    for (const Dims& dims : kSubsets) {
      check_gradients([&](const Tensors& t) { return sum(t[0], dims); }, {x});
      check_gradients([&](const Tensors& t) { return mean(t[0], dims, true); }, {x});
    }
    check_gradients([](const Tensors& t) { return sum(t[0]); }, {x});
    check_gradients([](const Tensors& t) { return mean(t[0]); }, {x});
    for (int dim = 0; dim < 4; ++dim) {
      check_gradients([=](const Tensors& t) { return softmax(t[0], dim); }, {x});
      check_gradients([=](const Tensors& t) { return log_softmax(t[0], dim); }, {x});
      check_gradients([=](const Tensors& t) { return max(t[0], dim).values; }, {x});
      check_gradients([=](const Tensors& t) { return max(t[0], dim, true).values; }, {x});
      check_gradients([=](const Tensors& t) { return topk(t[0], 2, dim).values; }, {x});
    }
  }
}

TEST_CASE("the first of equal maxima takes the gradient") {
  Tensor x = from_vector<double>({1, 3, 3}).requires_grad_();
  max(x, 0).values.backward();
  CHECK_EQ(list(x.grad()), std::vector<double>{0, 1, 0});
}

TEST_CASE("autocast widens sums and softmax") {
  const Tensor x = random({3, 5}, 1, DType::bf16);
  const AutocastGuard guard;
  CHECK_EQ(sum(x).dtype(), DType::f32);
  CHECK_EQ(mean(x).dtype(), DType::f32);
  CHECK_EQ(softmax(x, 1).dtype(), DType::f32);
  CHECK_EQ(log_softmax(x, 1).dtype(), DType::f32);
}

TEST_CASE("the number of threads changes no bits") {
  const test::Threads kept;
  const Tensor x = random({4, 9, 113, 127}, 1, DType::f32, kLast), y = raw::contiguous(x);
  const auto results = [&] {
    return Tensors{sum(x, {0, 2, 3}), sum(y, {0, 2, 3}), sum(y),     mean(x, {1}),
                   softmax(y, 1),     max(x, 2).values,  sum(y, {0})};
  };
  set_num_threads(1);
  const Tensors expected = results();
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const Tensors got = results();
    for (size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], expected[i]));
  }
}

TEST_CASE("errors") {
  const Tensor x = zeros({2, 3});
  CHECK_THROWS_WITH_AS(sum(Tensor()), "[sum] x: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(sum(x, {0, -2}), "[sum] dims: expected each dimension once, got [0,-2]",
                       Error);
  CHECK_THROWS_AS(sum(x, {2}), Error);
  CHECK_THROWS_WITH_AS(mean(zeros({3}, DType::i64)),
                       "[mean] x: expected bf16, f32 or f64, got i64 [3]", Error);
  CHECK_THROWS_WITH_AS(max(zeros({2, 0}), 1),
                       "[max] x: expected elements along dimension 1, got f32 [2,0]", Error);
  CHECK_THROWS_WITH_AS(argmax(zeros({2}, DType::boolean), 0),
                       "[argmax] x: expected a numeric dtype, got bool [2]", Error);
  CHECK_THROWS_WITH_AS(topk(x, 4), "[topk] k: expected 0..3, got 4; x f32 [2,3]", Error);
  CHECK_THROWS_WITH_AS(softmax(zeros({3}, DType::i64), 0),
                       "[softmax] x: expected bf16, f32 or f64, got i64 [3]", Error);
}
