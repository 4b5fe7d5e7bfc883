// Arithmetic, functions and activations: values, broadcasting, formats, dtypes, gradients at and
// off the kinks, errors. The accuracy of the kernels is tests/kernels/elementwise_test.cpp's.
#include <doctest/doctest.h>

#include <limits>

#include "gradcheck_helper.h"
#include "quern/ops/activation.h"
#include "quern/ops/autocast.h"
#include "quern/ops/binary.h"
#include "quern/ops/compare.h"
#include "quern/ops/detail/elementwise.h"
#include "quern/ops/detail/sum.h"
#include "quern/ops/sum.h"
#include "quern/ops/unary.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr auto kFirst = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;

Tensor numbers(const std::vector<double>& values) { return from_vector(values); }
std::vector<double> list(const Tensor& t) { return t.to_vector<double>(); }

/// dy/dx of f at x, elementwise.
std::vector<double> slopes(const std::function<Tensor(const Tensor&)>& f, const Tensor& at) {
  Tensor x = raw::clone(at).requires_grad_();
  const Tensor y = f(x);
  y.backward(ones_like(y));
  return list(x.grad());
}

/// a op b, element by element after broadcasting.
Tensor expected(const Tensor& a, const Tensor& b, const Shape& shape, double (*f)(double, double)) {
  const auto x = list(raw::expand(a, shape)), y = list(raw::expand(b, shape));
  std::vector<double> z(x.size());
  for (size_t i = 0; i < z.size(); ++i) z[i] = f(x[i], y[i]);
  return from_vector(z, shape);
}

}  // namespace

TEST_CASE("arithmetic broadcasts and keeps the format of the operands of full size") {
  struct Case {
    Shape a, b, y;
  };
  for (const auto& [a_shape, b_shape, shape] :
       std::vector<Case>{{{2, 3, 4, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}},
                         {{2, 3, 4, 5}, {3, 1, 1}, {2, 3, 4, 5}},
                         {{1, 3, 1, 1}, {2, 3, 4, 5}, {2, 3, 4, 5}},
                         {{2, 3, 4, 5}, {5}, {2, 3, 4, 5}},
                         {{2, 3, 1, 5}, {2, 1, 4, 1}, {2, 3, 4, 5}},
                         {{2, 3, 4, 5}, {}, {2, 3, 4, 5}},
                         // Rows that serve many, evenly or not, of several images or of one.
                         {{2, 3, 8, 9}, {2, 3, 1, 1}, {2, 3, 8, 9}},
                         {{2, 3, 1, 1}, {2, 3, 1, 13}, {2, 3, 1, 13}},
                         {{3, 400, 7}, {3, 1, 7}, {3, 400, 7}},
                         {{2, 2, 12, 5}, {2, 1, 1, 5}, {2, 2, 12, 5}},
                         {{2, 1, 12, 5}, {1, 2, 1, 5}, {2, 2, 12, 5}},
                         {{3, 1}, {1, 4}, {3, 4}},
                         // Short rows with a value each, in several cells.
                         {{30000, 3}, {30000, 1}, {30000, 3}},
                         {{2, 1500, 1}, {2, 1500, 13}, {2, 1500, 13}},
                         {{}, {}, {}},
                         {{0, 3}, {3}, {0, 3}},
                         {{3, 70000}, {3, 1}, {3, 70000}}})
    for (const auto a_format : {kFirst, kLast})
      for (const auto b_format : {kFirst, kLast}) {
        if ((a_format == kLast && a_shape.size() != 4) ||
            (b_format == kLast && b_shape.size() != 4))
          continue;
        CAPTURE(to_string(a_shape));
        CAPTURE(to_string(b_shape));
        const Tensor a = random(a_shape, 1, DType::f64, a_format);
        const Tensor b = random(b_shape, 2, DType::f64, b_format, 0.5, 2);
        for (const bool views : {false, true}) {
          const Tensor x = views ? strided(a) : a, y = views ? strided(b) : b;
          CHECK(same_bits(x + y, expected(a, b, shape, [](double p, double q) { return p + q; })));
          CHECK(same_bits(x - y, expected(a, b, shape, [](double p, double q) { return p - q; })));
          CHECK(same_bits(x * y, expected(a, b, shape, [](double p, double q) { return p * q; })));
          CHECK(same_bits(x / y, expected(a, b, shape, [](double p, double q) { return p / q; })));
          CHECK(same_bits(maximum(x, y),
                          expected(a, b, shape, [](double p, double q) { return p > q ? p : q; })));
          CHECK(same_bits(
              pow(y, x), expected(b, a, shape, [](double p, double q) { return std::pow(p, q); })));
        }
        const MemoryFormat format = a_shape == shape   ? a.format()
                                    : b_shape == shape ? b.format()
                                                       : kFirst;
        CHECK((a + b).is_dense_as(format));
      }
}

TEST_CASE("short rows with a value each, of any dtype") {
  std::vector<double> rows(7000 * 5), values(7000);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<double>(i % 11);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 7);
  for (DType dtype : {DType::f32, DType::bf16, DType::f64, DType::u8, DType::i32, DType::i64}) {
    const Tensor a = raw::to(from_vector(rows, {7000, 5}), dtype);
    const Tensor b = raw::to(from_vector(values, {7000, 1}), dtype);
    const auto both = [&](double (*f)(double, double)) {
      return list(expected(a, b, a.shape(), f));
    };
    CHECK(list(a + b) == both([](double x, double y) { return x + y; }));
    CHECK(list(maximum(b, a)) == both([](double x, double y) { return std::max(x, y); }));
    CHECK(list(lt(a, b)) == both([](double x, double y) { return x < y ? 1.0 : 0.0; }));
  }
}

TEST_CASE("operands that are themselves broadcast views") {
  const Tensor row = random({4}, 1), column = random({3, 1}, 2);
  const Tensor a = raw::expand(row, {3, 4}), b = raw::expand(column, {3, 4});
  CHECK(same_bits(a + b, row + column));
  CHECK(same_bits(a * a, raw::expand(row * row, {3, 4})));
  CHECK(same_bits(exp(a), raw::expand(exp(row), {3, 4})));
}

TEST_CASE("numbers and operators") {
  const Tensor x = numbers({1, -2, 4});
  CHECK_EQ(list(x + 0.5), std::vector<double>{1.5, -1.5, 4.5});
  CHECK_EQ(list(0.5 + x), std::vector<double>{1.5, -1.5, 4.5});
  CHECK_EQ(list(x - 1), std::vector<double>{0, -3, 3});
  CHECK_EQ(list(1 - x), std::vector<double>{0, 3, -3});
  CHECK_EQ(list(2 * x), std::vector<double>{2, -4, 8});
  CHECK_EQ(list(x * 2), std::vector<double>{2, -4, 8});
  CHECK_EQ(list(x / 2), std::vector<double>{0.5, -1, 2});
  CHECK_EQ(list(2 / x), std::vector<double>{2, -1, 0.5});
  CHECK_EQ(list(-x), std::vector<double>{-1, 2, -4});
  CHECK_EQ(list(pow(x, 2)), std::vector<double>{1, 4, 16});
  CHECK_EQ(list(pow(x, -1)), std::vector<double>{1, -0.5, 0.25});
  CHECK_EQ(list(clamp(x, -1, 2)), std::vector<double>{1, -1, 2});
}

TEST_CASE("dtypes promote; division and numbers make integers f32") {
  const Tensor i = from_vector<int64_t>({3, -4}), j = from_vector<int32_t>({2, 8});
  const Tensor h = random({2}, 1, DType::bf16), f = random({2}, 2, DType::f32);
  CHECK_EQ((i + j).dtype(), DType::i64);
  CHECK_EQ(list(i + j), std::vector<double>{5, 4});
  CHECK_EQ(list(-i), std::vector<double>{-3, 4});
  CHECK_EQ(list(abs(i)), std::vector<double>{3, 4});
  CHECK_EQ(list(relu(i)), std::vector<double>{3, 0});
  CHECK_EQ((i + h).dtype(), DType::bf16);
  CHECK_EQ((h + f).dtype(), DType::f32);
  CHECK(same_bits(h + f, raw::to(h, DType::f32) + f));
  CHECK_EQ((i / j).dtype(), DType::f32);
  CHECK_EQ(list(i / j), std::vector<double>{1.5, -0.5});
  CHECK_EQ((i + 1).dtype(), DType::f32);
  CHECK_EQ(exp(i).dtype(), DType::f32);
  // 0.1 is not rounded to bf16 first: 256·0.1 = 25.6 → 25.625, with bf16(0.1) it would be 25.75.
  CHECK_EQ(list(full({1}, 256, DType::bf16) * 0.1), std::vector<double>{25.625});
}

TEST_CASE("each op's gradient, broadcast, in both formats") {
  for (const auto format : {kFirst, kLast}) {
    const Tensor x = leaf({2, 3, 4, 2}, 1, format), channel = leaf({3, 1, 1}, 2);
    const Tensor positive = leaf({2, 3, 4, 2}, 3, format, 0.5, 2), last = leaf({2}, 4, {}, 0.5, 2);
    const auto check = [](Tensor (*f)(const Tensor&, const Tensor&), const Tensor& a,
                          const Tensor& b) {
      check_gradients([f](const Tensors& t) { return f(t[0], t[1]); }, {a, b});
      check_gradients([f](const Tensors& t) { return f(t[0], t[1]); }, {a, b.detach()});
      check_gradients([f](const Tensors& t) { return f(t[0], t[1]); }, {a.detach(), b});
    };
    check(add, x, channel), check(add, last, x);
    check(sub, x, channel), check(sub, last, x);
    check(mul, x, channel), check(mul, last, x);
    check(div, x, last), check(div, channel, positive);
    check(maximum, x, channel), check(minimum, channel, x);
    check(pow, positive, channel), check(pow, last, x);
  }
}

TEST_CASE("gradients of functions of one tensor") {
  const Tensor x = leaf({3, 7}, 5, {}, -3, 3), positive = leaf({3, 7}, 6, {}, 0.3, 3);
  for (Tensor (*f)(const Tensor&) : {neg, quern::abs, quern::exp, relu, sigmoid, quern::tanh, gelu,
                                     silu, hardsigmoid, hardswish})
    check_gradients([f](const Tensors& t) { return f(t[0]); }, {x});
  for (Tensor (*f)(const Tensor&) : {quern::log, quern::sqrt})
    check_gradients([f](const Tensors& t) { return f(t[0]); }, {positive});
  const std::vector<std::function<Tensor(const Tensor&)>> with_numbers{
      [](const Tensor& t) { return t + 2; },
      [](const Tensor& t) { return 2 - t; },
      [](const Tensor& t) { return t - 2; },
      [](const Tensor& t) { return t * 3; },
      [](const Tensor& t) { return t / 3; },
      [](const Tensor& t) { return 3 / t; },
      [](const Tensor& t) { return pow(t, 2); },
      [](const Tensor& t) { return pow(t, 2.5); },
      [](const Tensor& t) { return pow(t, -1); },
      [](const Tensor& t) { return pow(t, 0); },
      [](const Tensor& t) { return clamp(t, 0.5, 2); },
      [](const Tensor& t) { return relu6(t * 4); },
      [](const Tensor& t) { return leaky_relu(t - 1, 0.2); }};
  for (const auto& f : with_numbers)
    check_gradients([&f](const Tensors& t) { return f(t[0]); }, {positive});
}

TEST_CASE("gradients at kinks are PyTorch's") {
  const Tensor x = numbers({-1, 0, 1});
  CHECK_EQ(slopes(relu, x), std::vector<double>{0, 0, 1});
  CHECK_EQ(slopes(quern::abs, x), std::vector<double>{-1, 0, 1});
  const Tensor bends = numbers({-3, 0, 3, 6});
  CHECK_EQ(slopes(relu6, bends), std::vector<double>{0, 0, 1, 0});
  CHECK_EQ(slopes(hardsigmoid, bends), std::vector<double>{0, 1. / 6, 0, 0});
  CHECK_EQ(slopes(hardswish, bends), std::vector<double>{0, 0.5, 1, 1});
  CHECK_EQ(slopes([](const Tensor& t) { return leaky_relu(t, 0.25); }, bends),
           std::vector<double>{0.25, 0.25, 1, 1});
  CHECK_EQ(slopes([](const Tensor& t) { return minimum(t, full({4}, 3, DType::f64)); }, bends),
           std::vector<double>{1, 1, 0.5, 0});
  CHECK_EQ(slopes([](const Tensor& t) { return clamp(t, -1, 0.5); }, x),
           std::vector<double>{1, 1, 0});
  CHECK_EQ(slopes(
               [&](const Tensor& t) {
                 return maximum(t, numbers({0, 0, 0}));
               },
               x),
           std::vector<double>{0, 0.5, 1});
  CHECK_EQ(slopes(
               [&](const Tensor& t) {
                 return maximum(numbers({0, 0, 0}), t);
               },
               x),
           std::vector<double>{0, 0.5, 1});
  CHECK_EQ(slopes([](const Tensor& t) { return pow(t, 0); }, x), std::vector<double>{0, 0, 0});
  CHECK_EQ(slopes(
               [](const Tensor& t) {
                 return pow(numbers({0, 0, 1}), t);
               },
               numbers({0, 2, 2})),
           std::vector<double>{0, 0, 0});
  CHECK_EQ(slopes(quern::sqrt, numbers({0, 1})), std::vector<double>{kInf, 0.5});
}

TEST_CASE("NaN passes through activations, and its gradient as in PyTorch") {
  const Tensor nan = numbers({std::nan("")});
  for (Tensor (*f)(const Tensor&) : {relu, relu6, hardsigmoid, hardswish})
    CHECK(std::isnan(f(nan).item()));
  CHECK(std::isnan(leaky_relu(nan).item()));
  CHECK(std::isnan(minimum(nan, ones({1})).item()));
  CHECK(std::isnan(minimum(ones({1}), nan).item()));
  CHECK_EQ(slopes(relu6, nan), std::vector<double>{1});
  CHECK_EQ(slopes(hardsigmoid, nan), std::vector<double>{0});
  CHECK_EQ(slopes(hardswish, nan), std::vector<double>{1});
  CHECK_EQ(slopes([](const Tensor& t) { return leaky_relu(t, 0.25); }, nan),
           std::vector<double>{0.25});
  CHECK_EQ(slopes([](const Tensor& t) { return minimum(t, ones({1}, DType::f64)); }, nan),
           std::vector<double>{1});
}

TEST_CASE("one tensor as both operands") {
  Tensor x = numbers({3, -2}).requires_grad_();
  (x * x + x).backward(numbers({1, 1}));
  CHECK_EQ(list(x.grad()), std::vector<double>{7, -3});
}

TEST_CASE("add_ adds in place, scaled, broadcast, converted, into views") {
  for (const bool view : {false, true}) {
    Tensor dst = from_vector<float>({1, 2, 3, 4}, {2, 2});
    if (view) dst = strided(dst);
    const uint64_t version = dst.version();
    raw::add_(dst, from_vector<double>({10, 20}), 0.5);
    CHECK_EQ(list(dst), std::vector<double>{6, 12, 8, 14});
    raw::add_(dst, from_vector<int64_t>({1}));
    CHECK_EQ(list(dst), std::vector<double>{7, 13, 9, 15});
    CHECK_GT(dst.version(), version);
  }
  CHECK_THROWS_WITH_AS(raw::add_(zeros({2}), zeros({3, 2})),
                       "[add_] src: expected a shape that broadcasts to [2], got [3,2]", Error);
}

TEST_CASE("add_ reads what it adds before it writes there") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64}) {
    const auto fresh = [&] { return raw::to(numbers({1, 2, 3, 4}), dtype); };
    const Tensor rows = raw::reshape(fresh(), {2, 2});
    raw::add_(rows, raw::select(rows, 0, 0));
    CHECK_EQ(list(rows), std::vector<double>{2, 4, 4, 6});
    const Tensor columns = raw::reshape(fresh(), {2, 2});
    raw::add_(columns, raw::select(columns, 1, 1));
    CHECK_EQ(list(columns), std::vector<double>{3, 6, 5, 8});
    const Tensor square = raw::reshape(fresh(), {2, 2});
    raw::add_(square, raw::transpose(square, 0, 1));
    CHECK_EQ(list(square), std::vector<double>{2, 5, 5, 8});
    const Tensor itself = fresh();
    raw::add_(itself, itself);
    CHECK_EQ(list(itself), std::vector<double>{2, 4, 6, 8});
    const Tensor shifted = fresh();
    raw::add_(raw::slice(shifted, 0, 1, 4), raw::slice(shifted, 0, 0, 3));
    CHECK_EQ(list(shifted), std::vector<double>{1, 3, 5, 7});
  }
  CHECK_THROWS_WITH_AS(raw::add_(raw::expand(zeros({1}), {3}), ones({3})),
                       "[add_] dst: expected no expanded dimension, got f32 [3] strides [0]",
                       Error);
}

TEST_CASE("integers wrap around") {
  for (const auto& [dtype, least, most] : {std::tuple(DType::i64, INT64_MIN, INT64_MAX),
                                           {DType::i32, int64_t{INT32_MIN}, int64_t{INT32_MAX}},
                                           {DType::u8, int64_t{0}, int64_t{255}}}) {
    const Tensor low = raw::to(from_vector<int64_t>({least}), dtype),
                 high = raw::to(from_vector<int64_t>({most}), dtype), one = ones({1}, dtype);
    CHECK_EQ(add(high, one).item<int64_t>(), least);
    CHECK_EQ(sub(low, one).item<int64_t>(), most);
    CHECK_EQ(neg(low).item<int64_t>(), least);
    CHECK_EQ(abs(low).item<int64_t>(), least);
    CHECK_EQ(mul(high, high).item<int64_t>(), 1);
  }
  CHECK_EQ(sum(from_vector<int64_t>({INT64_MAX, 1})).item<int64_t>(), INT64_MIN);
}

TEST_CASE("clamp keeps integers exact, and fractions of its bounds") {
  const int64_t big = (int64_t{1} << 60) + 1;
  const Tensor x = from_vector<int64_t>({-big, -1, 0, 3, big});
  CHECK_EQ(clamp(x, 0).to_vector<int64_t>(), std::vector<int64_t>{0, 0, 0, 3, big});
  CHECK_EQ(clamp(x, -kInf, 2).to_vector<int64_t>(), std::vector<int64_t>{-big, -1, 0, 2, 2});
  const Tensor y = clamp(x, -0.5, 2.5);
  CHECK_EQ(y.dtype(), DType::f32);
  CHECK_EQ(list(y), std::vector<double>{-0.5, -0.5, 0, 2.5, 2.5});
  CHECK_EQ(clamp(full({1}, 200, DType::u8), -3, 300).dtype(), DType::u8);
}

TEST_CASE("autocast computes exp, log and pow in f32, follows the dtype elsewhere") {
  const Tensor x = random({3}, 1, DType::bf16, kFirst, 0.5, 2);
  const AutocastGuard guard;
  CHECK_EQ(quern::exp(x).dtype(), DType::f32);
  CHECK_EQ(quern::log(x).dtype(), DType::f32);
  CHECK_EQ(pow(x, 2.5).dtype(), DType::f32);
  CHECK_EQ(relu(x).dtype(), DType::bf16);
  CHECK_EQ((x + x).dtype(), DType::bf16);
}

TEST_CASE("the gradient of a factor that is broadcast is the sum of products") {
  for (const auto& [shape, factor] : {std::pair<Shape, Shape>{{2, 24, 60, 70}, {2, 24, 1, 1}},
                                      {{2, 24, 60, 70}, {1, 24, 1, 1}},
                                      {{2, 24, 60, 70}, {1, 24, 60, 70}},
                                      {{2, 24, 60, 70}, {2, 24, 60, 1}},
                                      {{3, 40000}, {3, 1}},
                                      {{40000, 3}, {1, 3}},
                                      {{1001, 5}, {1001, 1}},
                                      {{3, 40000}, {1}}})
    for (const auto format : {kFirst, kLast}) {
      if (format == kLast && shape.size() != 4) continue;
      const Tensor x = random(shape, 1, DType::f32, format),
                   dy = random(shape, 2, DType::f32, format);
      Tensor f = random(factor, 3, DType::f32).requires_grad_();
      (x * f).backward(dy);
      const Tensor products = raw::binary("test", kernels::Binary::mul, raw::to(x, DType::f64),
                                          raw::to(dy, DType::f64));
      CAPTURE(shape);
      CAPTURE(factor);
      // A sum of n products of either sign is √n of them by norm; each addition errs by at most u
      // of a partial sum, which is no more, and errors add up likewise:
      // √n·u of it. Eight times that.
      CHECK(relative_difference(f.grad(), raw::sum_to(products, factor)) <
            8 * 6e-8 * std::sqrt(static_cast<double>(numel(shape) / numel(factor))));
    }
}

TEST_CASE("the number of threads changes no bits") {
  const test::Threads kept;
  const Tensor a = random({3, 5, 97, 101}, 1, DType::f32, kLast),
               b = random({5, 1, 1}, 2, DType::f32);
  const Tensor c = random({3, 5, 97, 101}, 3, DType::f32);
  set_num_threads(1);
  const auto gradient = [&] {
    Tensor factor = raw::clone(b).requires_grad_();
    (a * factor).backward(c);
    return factor.grad();
  };
  const Tensor sum = a + b * c, activated = gelu(c), of_factor = gradient();
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    CHECK(same_bits(gradient(), of_factor));
    CHECK(same_bits(a + b * c, sum));
    CHECK(same_bits(gelu(c), activated));
  }
}

TEST_CASE("errors") {
  const Tensor x = zeros({2, 3});
  CHECK_THROWS_WITH_AS(add(x, Tensor()), "[add] b: expected a defined tensor, got undefined",
                       Error);
  CHECK_THROWS_WITH_AS(relu(Tensor()), "[relu] x: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_WITH_AS(Tensor() * 2, "[mul] x: expected a defined tensor, got undefined", Error);
  CHECK_THROWS_AS(x + zeros({4}), Error);
  const Tensor truth = zeros({2, 3}, DType::boolean);
  CHECK_THROWS_WITH_AS(truth + truth, "[add] dtype: expected a numeric dtype, got bool", Error);
  CHECK_THROWS_WITH_AS(-truth, "[neg] dtype: expected a numeric dtype, got bool", Error);
  CHECK_THROWS_WITH_AS(leaky_relu(x, std::nan("")),
                       "[leaky_relu] slope: expected a number, got nan", Error);
  CHECK_THROWS_WITH_AS(clamp(x, std::nan("")), "[clamp] min, max: expected numbers, got nan, inf",
                       Error);
}
