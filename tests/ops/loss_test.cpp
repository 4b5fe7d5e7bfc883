// The losses against their definitions in f64, in both formats, with every option.
#include <doctest/doctest.h>

#include "gradcheck_helper.h"
#include "quern/ops/autocast.h"
#include "quern/ops/loss.h"
#include "quern/ops/softmax.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr auto kFirst = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;
constexpr Reduction kReductions[] = {Reduction::mean, Reduction::sum, Reduction::none};

std::vector<double> list(const Tensor& t) { return t.to_vector<double>(); }

Tensor classes(const Shape& shape, int64_t count, uint64_t seed) {
  Tensor t = empty(shape, DType::f64);
  Generator generator(seed);
  uniform_(t, 0, static_cast<double>(count), generator);
  return raw::to(t, DType::i64);
}

/// Cross entropy of x[N,C,d...] by its definition; nll_loss where x holds log-probabilities.
std::vector<double> expected(const Tensor& x, const Tensor& target, const Tensor& weight,
                             int64_t ignore_index, Reduction reduction, double smoothing,
                             bool log_probabilities) {
  const int64_t count = x.size(1), inner = x.numel() / (x.size(0) * count);
  const auto values = list(x);
  const auto targets = target.to_vector<int64_t>();
  const auto w =
      weight.defined() ? list(weight) : std::vector<double>(static_cast<size_t>(count), 1);
  std::vector<double> losses;
  double total = 0, weights = 0;
  for (int64_t row = 0; row < target.numel(); ++row) {
    const int64_t t = targets[static_cast<size_t>(row)];
    const auto at = [&](int64_t c) {
      return values[static_cast<size_t>((row / inner * count + c) * inner + row % inner)];
    };
    double norm = 0, loss = 0;
    for (int64_t c = 0; c < count; ++c) norm += std::exp(at(c));
    if (log_probabilities) norm = 1;
    for (int64_t c = 0; c < count; ++c) {
      const double q = (c == t ? 1 - smoothing : 0) + smoothing / static_cast<double>(count);
      loss -= w[static_cast<size_t>(c)] * q * (at(c) - std::log(norm));
    }
    losses.push_back(t == ignore_index ? 0 : loss);
    total += losses.back();
    weights += t == ignore_index ? 0 : w[static_cast<size_t>(t)];
  }
  if (reduction == Reduction::none) return losses;
  return {reduction == Reduction::sum ? total : total / weights};
}

void check_close(const Tensor& got, const std::vector<double>& right, double relative) {
  const auto values = list(got);
  REQUIRE_EQ(values.size(), right.size());
  for (size_t i = 0; i < right.size(); ++i)
    CHECK_LE(std::abs(values[i] - right[i]), relative * (1 + std::abs(right[i])));
}

}  // namespace

TEST_CASE("cross_entropy and nll_loss by their definitions, with gradients") {
  for (const Shape& shape : {Shape{6, 5}, Shape{2, 5, 3}, Shape{2, 5, 3, 4}})
    for (const auto format : {kFirst, kLast}) {
      if (format == kLast && shape.size() != 4) continue;
      Shape rows = shape;
      rows.erase(1);
      const Tensor x = leaf(shape, 1, format, -3, 3), target = classes(rows, 5, 2);
      const Tensor weighted = random({5}, 3, DType::f64, kFirst, 0.2, 2);
      for (const Reduction reduction : kReductions)
        for (const Tensor& weight : {Tensor(), weighted})
          for (const int64_t ignore : {-100, 2}) {
            const Tensor log_p = log_softmax(x.detach(), 1).requires_grad_();
            // 24 losses of a few roundings each, f64.
            check_close(nll_loss(log_p, target, weight, ignore, reduction),
                        expected(log_p, target, weight, ignore, reduction, 0, true), 1e-14);
            check_gradients(
                [&](const Tensors& t) { return nll_loss(t[0], target, weight, ignore, reduction); },
                {log_p});
            for (const double smoothing : {0.0, 0.1, 1.0}) {
              const auto loss = [&](const Tensor& t) {
                return cross_entropy(t, target, weight, ignore, reduction, smoothing);
              };
              check_close(loss(x), expected(x, target, weight, ignore, reduction, smoothing, false),
                          1e-14);
              CHECK(same_bits(loss(strided(x.detach())), loss(x)));
              check_gradients([&](const Tensors& t) { return loss(t[0]); }, {x});
            }
          }
    }
}

TEST_CASE("cross_entropy in f32 and bf16: large logits, and the gradient's format") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = random({8, 1000}, 1, dtype, kFirst, 990, 1010).requires_grad_();
    const Tensor target = classes({8}, 1000, 2);
    const Tensor loss = cross_entropy(x, target);
    CHECK_EQ(loss.dtype(), dtype);
    const Tensor exact = raw::to(x, DType::f64).detach().requires_grad_();
    const Tensor right = cross_entropy(exact, target);
    loss.backward(), right.backward();
    // Logits differ by up to 20, the log of the sum is off by 260 roundoffs (its longest chain of
    // additions) + 20; then the loss is rounded to bf16.
    const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0;
    CHECK_LE(std::abs(loss.item() - right.item()), 300 * 0x1p-24 + rounding * right.item());
    // p is off by the same, relatively; p and dx are at most 1/8.
    CHECK_LE(max_abs_difference(x.grad(), exact.grad()), (350 * 0x1p-24 + rounding) / 8);
  }
  Tensor image = random({2, 3, 4, 5}, 1, DType::f32, kLast).requires_grad_();
  cross_entropy(image, classes({2, 4, 5}, 3, 2)).backward();
  CHECK_EQ(image.grad().format(), kLast);
}

TEST_CASE("all targets ignored: a mean of nothing is NaN, a sum 0") {
  const Tensor x = random({2, 3}, 1), target = from_vector<int64_t>({-100, -100});
  CHECK(std::isnan(cross_entropy(x, target).item()));
  CHECK_EQ(cross_entropy(x, target, {}, -100, Reduction::sum).item(), 0);
}

TEST_CASE("an ignored target may be a class") {
  const Tensor x = random({3, 4}, 1);
  const Tensor target = from_vector<int64_t>({2, 1, 2});
  CHECK_EQ(nll_loss(x, target, {}, 2).item(), -list(x)[4 + 1]);
}

TEST_CASE("losses of no rows") {
  const Tensor target = zeros({0}, DType::i64);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Tensor x = zeros({0, 3}, dtype).requires_grad_();
    for (const Reduction reduction : kReductions) {
      const Tensor losses[] = {cross_entropy(x, target, {}, -100, reduction),
                               cross_entropy(x, target, {}, -100, reduction, 0.1),
                               nll_loss(x, target, {}, -100, reduction),
                               mse_loss(x, zeros({0, 3}, dtype), reduction)};
      for (const Tensor& loss : losses) {
        if (reduction == Reduction::none) CHECK_EQ(loss.numel(), 0);
        else if (reduction == Reduction::sum) CHECK_EQ(loss.item(), 0);
        else CHECK(std::isnan(loss.item()));
        loss.backward(ones_like(loss));
        CHECK_EQ(x.grad().shape(), x.shape());
      }
    }
  }
  const Tensor image = zeros({2, 3, 0, 4});
  CHECK(std::isnan(cross_entropy(image, zeros({2, 0, 4}, DType::i64)).item()));
}

TEST_CASE("mse_loss") {
  const Tensor a = leaf({2, 3, 2, 2}, 1, kLast), b = leaf({2, 3, 2, 2}, 2);
  const auto x = list(a), y = list(b);
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) total += (x[i] - y[i]) * (x[i] - y[i]);
  CHECK_LE(std::abs(mse_loss(a, b, Reduction::sum).item() - total), 1e-14);
  CHECK_LE(std::abs(mse_loss(a, b).item() - total / 24), 1e-15);
  CHECK_EQ(mse_loss(a, b, Reduction::none).shape(), a.shape());
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
      CHECK_EQ(mse_loss(raw::to(a, dtype), raw::to(b, dtype), reduction).dtype(), dtype);
  for (const Reduction reduction : kReductions)
    check_gradients([=](const Tensors& t) { return mse_loss(t[0], t[1], reduction); }, {a, b});
}

TEST_CASE("autocast computes losses in f32") {
  const Tensor x = random({4, 5}, 1, DType::bf16), target = classes({4}, 5, 2);
  const AutocastGuard guard;
  CHECK_EQ(cross_entropy(x, target).dtype(), DType::f32);
  CHECK_EQ(nll_loss(x, target).dtype(), DType::f32);
  CHECK_EQ(mse_loss(x, x).dtype(), DType::f32);
}

TEST_CASE("the number of threads changes no bits") {
  const test::Threads kept;
  const Tensor target = classes({300}, 1000, 2);
  const auto run = [&](int threads) {
    set_num_threads(threads);
    Tensor x = random({300, 1000}, 1, DType::f32).requires_grad_();
    const Tensor loss = cross_entropy(x, target, {}, -100, Reduction::mean, 0.1);
    loss.backward();
    return std::pair(loss, x.grad());
  };
  const auto [loss, gradient] = run(1);
  for (const int threads : {2, 3}) {
    const auto [again, same] = run(threads);
    CHECK(same_bits(again, loss));
    CHECK(same_bits(same, gradient));
  }
}

TEST_CASE("errors") {
  const Tensor x = zeros({2, 3});
  const Tensor target = from_vector<int64_t>({0, 3}), good = from_vector<int64_t>({0, 1});
  CHECK_THROWS_WITH_AS(
      cross_entropy(x, target),
      "[cross_entropy] target: expected 0..2 or ignore_index -100, got 3 at index 1", Error);
  CHECK_THROWS_WITH_AS(nll_loss(x, from_vector<int64_t>({-1, 0})),
                       "[nll_loss] target: expected 0..2 or ignore_index -100, got -1 at index 0",
                       Error);
  CHECK_THROWS_WITH_AS(nll_loss(zeros({3, 3}), from_vector<int64_t>({-100, 7, 0})),
                       "[nll_loss] target: expected 0..2 or ignore_index -100, got 7 at index 1",
                       Error);
  CHECK_THROWS_WITH_AS(nll_loss(x, from_vector<int64_t>({1, -100}), {}, 1),
                       "[nll_loss] target: expected 0..2 or ignore_index 1, got -100 at index 1",
                       Error);
  CHECK_THROWS_WITH_AS(nll_loss(x, from_vector<int64_t>({0, INT64_MIN})),
                       "[nll_loss] target: expected 0..2 or ignore_index -100, got "
                       "-9223372036854775808 at index 1",
                       Error);
  CHECK_THROWS_WITH_AS(cross_entropy(x, zeros({2})),
                       "[cross_entropy] target: expected i64 [2] for input [2,3], got f32 [2]",
                       Error);
  CHECK_THROWS_WITH_AS(
      cross_entropy(zeros({2, 0}), zeros({2}, DType::i64)),
      "[cross_entropy] input: expected bf16, f32 or f64 [N,C,...] of at least one class, "
      "got f32 [2,0]",
      Error);
  CHECK_THROWS_WITH_AS(cross_entropy(x, good, zeros({2})),
                       "[cross_entropy] weight: expected bf16, f32 or f64 [3], got f32 [2]", Error);
  CHECK_THROWS_WITH_AS(cross_entropy(x, good, {}, -100, Reduction::mean, 1.5),
                       "[cross_entropy] label_smoothing: expected 0..1, got 1.5", Error);
  CHECK_THROWS_WITH_AS(mse_loss(x, zeros({3, 2})),
                       "[mse_loss] target: expected shape [2,3], got [3,2]", Error);
  CHECK_THROWS_WITH_AS(mse_loss(zeros({1}, DType::i64), zeros({1})),
                       "[mse_loss] input: expected bf16, f32 or f64, got i64 [1]", Error);
}
