// The lesson on autograd: its gradients against slopes, the library's and by hand; its exercises.
#include "autograd/autograd.h"

#include <doctest/doctest.h>

#include <random>

#include "quern/ops/ops.h"
#include "quern/tensor/tensor.h"

using namespace quern;

namespace {

using lessons::Variable;

Variable random(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(rows * columns));
  for (double& value : values) value = normal(generator);
  return {rows, columns, values};
}

/// Differences of f by h = 1e-6 are off by h² times its third derivative, and by
/// 2^-53·|f|/h ≈ 1e-10 for each rounding; all here is of the order of 10.
constexpr double kSlopeError = 1e-7;

}  // namespace

TEST_CASE("Every op's gradient is its slope") {
  const Variable x = random(3, 4, 1), y = random(3, 4, 2), w = random(4, 5, 3), v = random(3, 5, 4);
  CHECK(lessons::gradcheck([&] { return sum(x + y); }, {x, y}) < kSlopeError);
  CHECK(lessons::gradcheck([&] { return sum(x * y); }, {x, y}) < kSlopeError);
  CHECK(lessons::gradcheck([&] { return sum(tanh(x) * y); }, {x, y}) < kSlopeError);
  CHECK(lessons::gradcheck([&] { return sum(relu(x) * y); }, {x, y}) < kSlopeError);
  CHECK(lessons::gradcheck([&] { return sum(matmul(x, w) * v); }, {x, w, v}) < kSlopeError);
}

TEST_CASE("gradcheck tells a wrong gradient") {
  const Variable x = random(2, 2, 1);
  const auto wrong = [&] {
    return sum(lessons::elementwise(
        x, [](double v) { return v * v; }, [](double v) { return v; }));
  };
  CHECK(lessons::gradcheck(wrong, {x}) > 0.1);
}

TEST_CASE("A variable that is used twice gets both gradients before it passes them on") {
  const Variable x(1, 1, {3});
  const Variable square = x * x;                // d/dx = 2x
  const Variable y = square + square * square;  // x² + x⁴
  sum(y).backward();
  CHECK(x.grad()[0] == 2 * 3 + 4 * 27);
  sum(y).backward();  // leaves add up
  CHECK(x.grad()[0] == 2 * (2 * 3 + 4 * 27));
}

TEST_CASE("Graphs may be deeper than a stack") {
  const Variable x(1, 1, {1});
  std::vector<Variable> chain{x};  // keeps them, so that they go one by one
  for (int i = 0; i < 200000; ++i) chain.push_back(chain.back() + x);
  chain.back().backward();
  CHECK(x.grad()[0] == 200001);
  while (!chain.empty()) chain.pop_back();
}

TEST_CASE("Wrong shapes are errors") {
  const Variable x = random(2, 3, 1), y = random(3, 2, 2);
  CHECK_THROWS_WITH_AS(x + y, "[add] b: expected 2×3, got 3×2", Error);
  CHECK_THROWS_WITH_AS(matmul(x, x), "[matmul] b: expected 3 rows, got 2", Error);
  CHECK_THROWS_WITH_AS(x.backward(), "[backward] result: expected one number, got 6", Error);
  CHECK_THROWS_WITH_AS(Variable(2, 2, {1}), "[Variable] value: expected 4 numbers, got 1", Error);
}

TEST_CASE("The library's engine gives the same gradients") {
  const Variable x = random(4, 3, 1), w = random(3, 5, 2), b = random(4, 5, 3);
  sum(tanh(matmul(x, w) + b) * b).backward();
  const auto tensor = [](const Variable& v) {
    return from_vector(v.value(), {v.rows(), v.columns()}).requires_grad_();
  };
  const Tensor tx = tensor(x), tw = tensor(w), tb = tensor(b);
  sum(tanh(matmul(tx, tw) + tb) * tb).backward();
  const auto agree = [](const Variable& ours, const Tensor& library) {
    const auto theirs = library.grad().to_vector<double>();
    for (size_t i = 0; i < theirs.size(); ++i)
      CHECK(ours.grad()[i] == doctest::Approx(theirs[i]).epsilon(1e-12));
  };
  agree(x, tx), agree(w, tw), agree(b, tb);
}

TEST_CASE("Exercise 1: exp, and softmax of a row") {
  const auto exponential = [](const Variable& x) {
    const auto f = [](double v) { return std::exp(v); };
    return lessons::elementwise(x, f, f);
  };
  const auto reciprocal = [](const Variable& x) {
    return lessons::elementwise(
        x, [](double v) { return 1 / v; }, [](double v) { return -1 / (v * v); });
  };
  const auto softmax = [&](const Variable& row) {
    const Variable e = exponential(row), ones(1, row.columns(), std::vector<double>(4, 1.0));
    return e * matmul(reciprocal(sum(e)), ones);  // the same divisor for each
  };
  const Variable x = random(1, 4, 1), weight = random(1, 4, 2);
  CHECK(sum(softmax(x)).value()[0] == doctest::Approx(1));
  CHECK(lessons::gradcheck([&] { return sum(softmax(x) * weight); }, {x, weight}) < kSlopeError);
}

TEST_CASE("Exercise 3: two layers learn XOR") {
  const Variable x(4, 2, {0, 0, 0, 1, 1, 0, 1, 1}), minus(4, 1, {0, -1, -1, 0});
  const Variable ones(4, 1, {1, 1, 1, 1});
  const Variable w1 = random(2, 8, 1), b1 = random(1, 8, 2), w2 = random(8, 1, 3);
  double loss = 0;
  for (int step = 0; step < 500; ++step) {
    const Variable off = matmul(tanh(matmul(x, w1) + matmul(ones, b1)), w2) + minus;
    const Variable squares = sum(off * off);
    loss = squares.value()[0];
    for (const Variable& w : {w1, b1, w2}) w.zero_grad();
    squares.backward();
    for (const Variable& w : {w1, b1, w2})
      for (size_t i = 0; i < w.value().size(); ++i) w.value()[i] -= 0.1 * w.grad()[i];
  }
  CHECK(loss < 1e-3);
}
