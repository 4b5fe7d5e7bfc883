// Every elementwise record against the f64 reference: bounds, special values, tails, scalar
// operands.
#include "records.h"

#include <limits>
#include <random>

#include "quern/ops/kernels/elementwise/elementwise.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLongest = 3 * 16 + 1;  // three of the widest vectors and one element

struct Parameters {
  double p = 0, q = 0;
};
Parameters parameters(Unary op) {
  return op == Unary::clamp        ? Parameters{-0.5, 0.75}
         : op == Unary::leaky_relu ? Parameters{0.125, 0}
         : op == Unary::half_power ? Parameters{-1.5, 0}
                                   : Parameters{};
}
Parameters parameters(Binary op) {
  return op == Binary::clamp_backward_x        ? Parameters{-0.5, 0.75}
         : op == Binary::hardtanh_backward_y   ? Parameters{-0.5, 0.75}
         : op == Binary::leaky_relu_backward_x ? Parameters{0.125, 0}
         : op == Binary::add_scaled            ? Parameters{-0.375, 0}
         : op == Binary::scaled_difference     ? Parameters{-0.375, 0}
         : op == Binary::half_power_backward_x ? Parameters{2.5, 0}
                                               : Parameters{};
}

/// Of rough_normal, Φ(x) and the bell relative to themselves: the polynomials 99 and 45,
/// roundings 16, and of the exponent, x²/2, three: a square, a product and its constant.
double rough(double x) { return 160 + 1.5 * x * x; }

/// Of rough_exp: the polynomial 45, roundings 2, and of the exponent, x·log2 e, 1.5: a product and
/// its constant.
double rough_exp(double x) { return 47 + 1.5 * std::abs(x); }

/// Error of the vector formulas in f32 roundoffs. exp and log are within 1 ULP, at most 2 of them;
/// every other operation adds 1.
double bound(Unary op, double x, double y, DType dtype) {
  switch (op) {
    case Unary::neg:
    case Unary::abs:
    case Unary::relu:
    case Unary::clamp:
    case Unary::leaky_relu: return 0;  // of slope 1/8
    case Unary::hardsigmoid: return 2 * std::abs(y);
    case Unary::hardswish: return 3 * std::abs(y);
    case Unary::sqrt: return std::abs(y);
    case Unary::exp:
    case Unary::log:
    case Unary::tanh: return 2 * std::abs(y);
    // exp, +, /
    case Unary::silu:
      if (dtype == DType::bf16) return (rough_exp(x) + 2) * std::abs(y);
      [[fallthrough]];
    case Unary::sigmoid: return 4 * std::abs(y);
    // The tail: exp 2, Mills' ratio 5 (its argument is off by 1.5, times at most 2.3), the products
    // with it and with x. Where 1 less the tail is more than it, half of that.
    case Unary::gelu:
      if (dtype == DType::bf16) return rough(x) * std::abs(y);
      return std::min(9 * std::abs(y), 2.5 * std::abs(x) + std::abs(y));
    case Unary::half_power: return 4 * std::abs(y);  // of -1.5: 1/x 1½ times, root, product
  }
  return 0;
}

double bound(Binary op, double a, double b, double y, DType dtype) {
  switch (op) {
    case Binary::maximum:
    case Binary::minimum:
    case Binary::minimum_by_a:
    case Binary::hardtanh_backward_y:
    case Binary::leaky_relu_backward_x:  // of slope 1/8
    case Binary::abs_backward_x:
    case Binary::relu_backward_y:
    case Binary::clamp_backward_x:
    case Binary::maximum_by_a: return 0;
    case Binary::add:
    case Binary::sub:
    case Binary::mul:
    case Binary::div:
    case Binary::hardsigmoid_backward_x:
    case Binary::sqrt_backward_y: return std::abs(y);
    // The slope: a third of |x| < 3, off by 2, and the sum, below 1.5.
    case Binary::hardswish_backward_x: return 3.5 * std::abs(a) + std::abs(y);
    case Binary::add_scaled: return 0.375 * std::abs(b) + std::abs(y);  // without an fma
    case Binary::pow:
    case Binary::scaled_difference: return 2 * std::abs(y);
    case Binary::squared_difference:
    case Binary::sigmoid_backward_y: return 3 * std::abs(y);
    case Binary::tanh_backward_y: return 4 * std::abs(y);
    case Binary::half_power_backward_x:
      return 4 * std::abs(y);  // of 1.5: root, 3 products
    // Φ(x) 3.5; x·density: argument x²/2, exp 2, 3 products, of at most 0.25; their sum and the
    // product.
    case Binary::gelu_backward_x:
      if (dtype == DType::bf16) return rough(b) * 1.25 * std::abs(a);  // at most 1 and 0.25
      return 8 * std::abs(a);
    // s is off by 4 of it, so 1 - s by 4s + 1; times s·|x|; 5 more operations on what is below 1.1.
    case Binary::silu_backward_x: {
      const double s = 1 / (1 + std::exp(-b));
      return std::abs(a) * (s * std::abs(b) * (4 * s + 2) + 8);
    }
    // b - 1 is off by one roundoff, so the power by |b - 1|·|log a| of them.
    case Binary::pow_by_a: {
      const double log_a = a == 0 ? 0 : std::abs(std::log(std::abs(a)));
      return (3 + std::abs(b - 1) * log_a) * std::abs(y);
    }
    case Binary::pow_by_b: return 5 * std::abs(y);
  }
  return 0;
}

/// Where the op is defined: its first operand may be anything.
bool is_power(Binary op) {
  return op == Binary::pow || op == Binary::pow_by_a || op == Binary::pow_by_b;
}

std::vector<double> uniform(int64_t n, double low, double high, DType dtype, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) value = draw(engine);
  return Buffer(dtype, values).values();  // as the dtype holds them
}

std::vector<double> inputs(Unary op, int64_t n, DType dtype) {
  const bool positive = op == Unary::log || op == Unary::sqrt || op == Unary::half_power;
  return uniform(n, positive ? 1e-3 : -9, 9, dtype, 1);
}
std::vector<double> first_inputs(Binary op, int64_t n, DType dtype) {
  return uniform(n, is_power(op) ? 1e-2 : -3, 3, dtype, 2);
}
std::vector<double> second_inputs(Binary op, int64_t n, DType dtype) {
  if (op == Binary::sqrt_backward_y || op == Binary::half_power_backward_x)
    return uniform(n, 0.1, 3, dtype, 3);
  if (op == Binary::tanh_backward_y) return uniform(n, -1, 1, dtype, 3);
  if (op == Binary::sigmoid_backward_y) return uniform(n, 0, 1, dtype, 3);
  return uniform(n, -6, 6, dtype, 3);
}

std::string_view op_name(std::string_view name, DType dtype) {
  return name.substr(0, name.find(fmt::format("_{}_", dtype)));
}
template <class List, class Kernel>
const Kernel& f64_reference(const List& list, const Kernel& kernel) {
  return named(list, fmt::format("{}_f64_reference", op_name(kernel.name, kernel.dtype)));
}

std::vector<double> reference(const UnaryKernel& kernel, const std::vector<double>& x) {
  const Parameters k = parameters(kernel.op);
  std::vector<double> y(x.size());
  f64_reference(table<UnaryKernel>(), kernel)
      .run(static_cast<int64_t>(x.size()), x.data(), y.data(), k.p, k.q);
  return y;
}

std::vector<double> reference(const BinaryKernel& kernel, const std::vector<double>& a,
                              const std::vector<double>& b, Run mode) {
  const Parameters k = parameters(kernel.op);
  const size_t n = std::max(a.size(), b.size());
  std::vector<double> y(n);
  f64_reference(table<BinaryKernel>(), kernel)
      .run(static_cast<int64_t>(n), a.data(), b.data(), y.data(), mode, k.p, k.q);
  return y;
}

template <class Kernel>
bool has_vectors(const Kernel& kernel) {
  return kernel.dtype == DType::f32 || kernel.dtype == DType::bf16;
}

}  // namespace

TEST_CASE("unary kernels are within their bounds, whatever the length of a run") {
  each_runnable(table<UnaryKernel>(), has_vectors<UnaryKernel>, [](const UnaryKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const Parameters k = parameters(kernel.op);
    const auto x = inputs(kernel.op, kLongest, kernel.dtype);
    const auto expected = reference(kernel, x);
    for (int64_t n = 0; n <= kLongest; ++n) {
      Buffer in(kernel.dtype, {x.begin(), x.begin() + n}), out(kernel.dtype, n);
      kernel.run(n, in.data(), out.data(), k.p, k.q);
      REQUIRE(out.guarded());
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        CAPTURE(n);
        CAPTURE(x[at]);
        CAPTURE(out[i]);
        CAPTURE(expected[at]);
        REQUIRE(close(out[i], expected[at], bound(kernel.op, x[at], expected[at], kernel.dtype),
                      kernel.dtype));
      }
    }
  });
}

TEST_CASE("binary kernels are within their bounds, whatever the length and the scalar operand") {
  each_runnable(table<BinaryKernel>(), has_vectors<BinaryKernel>, [](const BinaryKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const Parameters k = parameters(kernel.op);
    for (const Run mode : {Run::dense_dense, Run::scalar_dense, Run::dense_scalar}) {
      // A scalar operand is in f32 even for bf16.
      auto a = mode == Run::scalar_dense ? first_inputs(kernel.op, 1, DType::f32)
                                         : first_inputs(kernel.op, kLongest, kernel.dtype);
      auto b = mode == Run::dense_scalar ? second_inputs(kernel.op, 1, DType::f32)
                                         : second_inputs(kernel.op, kLongest, kernel.dtype);
      const auto expected = reference(kernel, a, b, mode);
      if (mode == Run::scalar_dense) a.resize(kLongest, a[0]);
      if (mode == Run::dense_scalar) b.resize(kLongest, b[0]);
      Buffer first(mode == Run::scalar_dense ? DType::f32 : kernel.dtype, a);
      Buffer second(mode == Run::dense_scalar ? DType::f32 : kernel.dtype, b);
      for (int64_t n = 0; n <= kLongest; ++n) {
        Buffer out(kernel.dtype, n);
        kernel.run(n, first.data(), second.data(), out.data(), mode, k.p, k.q);
        REQUIRE(out.guarded());
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          CAPTURE(n);
          CAPTURE(a[at]);
          CAPTURE(b[at]);
          CAPTURE(out[i]);
          CAPTURE(expected[at]);
          REQUIRE(close(out[i], expected[at],
                        bound(kernel.op, a[at], b[at], expected[at], kernel.dtype), kernel.dtype));
        }
      }
    }
  });
}

TEST_CASE("an element's bits do not depend on its place in the run") {
  each_runnable(table<UnaryKernel>(), has_vectors<UnaryKernel>, [](const UnaryKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const Parameters k = parameters(kernel.op);
    Buffer in(kernel.dtype, inputs(kernel.op, kLongest, kernel.dtype)), out(kernel.dtype, kLongest);
    kernel.run(kLongest, in.data(), out.data(), k.p, k.q);
    for (int64_t i = 0; i < kLongest; ++i) {
      Buffer alone(kernel.dtype, 1);
      kernel.run(1, in.at(i), alone.data(), k.p, k.q);
      REQUIRE_EQ(alone[0], out[i]);
    }
  });
  each_runnable(table<BinaryKernel>(), has_vectors<BinaryKernel>, [](const BinaryKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const Parameters k = parameters(kernel.op);
    Buffer a(kernel.dtype, first_inputs(kernel.op, kLongest, kernel.dtype));
    Buffer b(kernel.dtype, second_inputs(kernel.op, kLongest, kernel.dtype));
    Buffer out(kernel.dtype, kLongest);
    kernel.run(kLongest, a.data(), b.data(), out.data(), Run::dense_dense, k.p, k.q);
    for (int64_t i = 0; i < kLongest; ++i) {
      Buffer alone(kernel.dtype, 1);
      kernel.run(1, a.at(i), b.at(i), alone.data(), Run::dense_dense, k.p, k.q);
      REQUIRE_EQ(alone[0], out[i]);
    }
  });
}

TEST_CASE("special values") {
  const std::vector<double> special{0.0,  -0.0,  1,        -1,   0.5,   -0.5, 2,
                                    3,    -3,    80,       -80,  100,   -100, 1e-30,
                                    1e30, -1e30, 0x1p-126, kInf, -kInf, kNaN};
  each_runnable(table<UnaryKernel>(), has_vectors<UnaryKernel>, [&](const UnaryKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const Parameters k = parameters(kernel.op);
    Buffer in(kernel.dtype, special), out(kernel.dtype, static_cast<int64_t>(special.size()));
    const auto x = in.values(), expected = reference(kernel, x);
    kernel.run(static_cast<int64_t>(x.size()), in.data(), out.data(), k.p, k.q);
    for (size_t i = 0; i < x.size(); ++i) {
      const double y = out[static_cast<int64_t>(i)];
      CAPTURE(x[i]);
      CAPTURE(y);
      CAPTURE(expected[i]);
      CHECK(close(y, expected[i], bound(kernel.op, x[i], expected[i], kernel.dtype), kernel.dtype));
    }
  });
  // Gradients are finite where the function is used: kinks and zeros.
  const std::vector<double> finite{0.0, -0.0, 1, -1, 0.5, -0.5, 0.75, 2, -3};
  each_runnable(table<BinaryKernel>(), has_vectors<BinaryKernel>, [&](const BinaryKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const Parameters k = parameters(kernel.op);
    const bool arithmetic = kernel.op <= Binary::pow;
    for (const double scalar : arithmetic ? special : finite) {
      Buffer a(kernel.dtype, std::vector<double>(special.size(), scalar));
      Buffer b(kernel.dtype, arithmetic ? special : finite);
      const auto x = a.values(), y = b.values();
      const auto n = static_cast<int64_t>(y.size());
      const auto expected = reference(kernel, {x.begin(), x.begin() + n}, y, Run::dense_dense);
      Buffer out(kernel.dtype, n);
      kernel.run(n, a.data(), b.data(), out.data(), Run::dense_dense, k.p, k.q);
      for (size_t i = 0; i < y.size(); ++i) {
        const double got = out[static_cast<int64_t>(i)];
        CAPTURE(x[i]);
        CAPTURE(y[i]);
        CAPTURE(got);
        CAPTURE(expected[i]);
        CHECK(close(got, expected[i], bound(kernel.op, x[i], y[i], expected[i], kernel.dtype),
                    kernel.dtype));
      }
    }
  });
}

TEST_CASE("comparisons are exact, whatever the length, the scalar operand and NaN") {
  each_runnable(table<ComparisonKernel>(), [](const ComparisonKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const bool floating = is_floating(kernel.dtype);
    const double extra = floating ? kNaN : 7;
    std::vector<double> values;  // with many equals
    for (int i = 0; i < 3 * 64 + 5; ++i) values.push_back(i % 11 == 3 ? extra : i * 7 % 5);
    const auto holds = [&](double a, double b) {
      switch (kernel.op) {
        case Comparison::eq: return a == b;
        case Comparison::ne: return a != b;
        case Comparison::lt: return a < b;
        case Comparison::le: return a <= b;
        case Comparison::gt: return a > b;
        case Comparison::ge: break;
      }
      return a >= b;
    };
    for (const Run mode : {Run::dense_dense, Run::scalar_dense, Run::dense_scalar})
      for (const size_t n : {size_t{0}, size_t{1}, size_t{17}, values.size()}) {
        std::vector<double> a(values.begin(), values.begin() + static_cast<int64_t>(n));
        std::vector<double> b(a.rbegin(), a.rend());
        const DType scalar = floating && kernel.dtype != DType::f64 ? DType::f32 : kernel.dtype;
        Buffer first(mode == Run::scalar_dense ? scalar : kernel.dtype,
                     mode == Run::scalar_dense ? std::vector<double>{2} : a);
        Buffer second(mode == Run::dense_scalar ? scalar : kernel.dtype,
                      mode == Run::dense_scalar ? std::vector<double>{2} : b);
        Buffer out(DType::boolean, static_cast<int64_t>(n));
        kernel.run(static_cast<int64_t>(n), first.data(), second.data(),
                   static_cast<bool*>(out.data()), mode);
        REQUIRE(out.guarded());
        for (size_t i = 0; i < n; ++i)
          REQUIRE_EQ(
              out[static_cast<int64_t>(i)] != 0,
              holds(mode == Run::scalar_dense ? 2 : a[i], mode == Run::dense_scalar ? 2 : b[i]));
      }
  });
}

TEST_CASE("where keeps the bits of what it chooses") {
  each_runnable(table<ChoiceKernel>(), [](const ChoiceKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    constexpr int64_t n = 3 * 64 + 5;
    Buffer condition(DType::boolean, n), a(DType::u8, n * kernel.item),
        b(DType::u8, n * kernel.item), out(DType::u8, n * kernel.item);
    for (int64_t i = 0; i < n; ++i) condition.set(i, i % 3 == 1);
    for (int64_t i = 0; i < n * kernel.item; ++i)
      a.set(i, static_cast<double>(i % 251)), b.set(i, static_cast<double>(255 - i % 241));
    for (const Run mode : {Run::dense_dense, Run::scalar_dense, Run::dense_scalar}) {
      kernel.run(n, static_cast<const bool*>(condition.data()), a.data(), b.data(), out.data(),
                 mode);
      REQUIRE(out.guarded());
      for (int64_t i = 0; i < n * kernel.item; ++i) {
        const int64_t element = i / kernel.item, byte = i % kernel.item;
        const double expected = element % 3 == 1 ? a[mode == Run::scalar_dense ? byte : i]
                                                 : b[mode == Run::dense_scalar ? byte : i];
        REQUIRE_EQ(out[i], expected);
      }
    }
  });
}

TEST_CASE("integers wrap nowhere in range and are exact beyond a double's 53 bits") {
  const int64_t big = (int64_t{1} << 53) + 1;
  const std::vector<int64_t> a{big, -5, 0}, b{2, 7, -1};
  std::vector<int64_t> y(3);
  const auto run = [&](Binary op) {
    select_binary("test", op, DType::i64)
        .run(3, a.data(), b.data(), y.data(), Run::dense_dense, 0, 0);
    return y;
  };
  CHECK_EQ(run(Binary::add), std::vector<int64_t>{big + 2, 2, -1});
  CHECK_EQ(run(Binary::sub), std::vector<int64_t>{big - 2, -12, 1});
  CHECK_EQ(run(Binary::mul), std::vector<int64_t>{2 * big, -35, 0});
  CHECK_EQ(run(Binary::maximum), std::vector<int64_t>{big, 7, 0});
  CHECK_EQ(run(Binary::minimum), std::vector<int64_t>{2, -5, -1});
  const auto clamp = [&](double low, double high) {
    select_unary("test", Unary::clamp, DType::i64).run(3, a.data(), y.data(), low, high);
    return y;
  };
  CHECK_EQ(clamp(-kInf, kInf), a);
  CHECK_EQ(clamp(-2, 1), std::vector<int64_t>{1, -2, 0});
}

TEST_CASE("the cap of instruction sets chooses the record") {
  std::vector<const UnaryKernel*> exp;
  for (const UnaryKernel* kernel : table<UnaryKernel>())
    if (kernel->op == Unary::exp && kernel->dtype == DType::f32) exp.push_back(kernel);
  const auto isas = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::neon_bf16};
  test::each_cap(isas, exp, [](Isa cap) {
    CHECK_EQ(select_unary("test", Unary::exp, DType::f32).name,
             fmt::format("exp_f32_{}", to_string(cap)));
    CHECK_EQ(select_binary("test", Binary::add, DType::bf16).name,
             fmt::format("add_bf16_{}", to_string(cap)));
  });
  CHECK_EQ(std::string_view(select_unary("test", Unary::exp, DType::f64).name),
           "exp_f64_reference");
  CHECK_THROWS_WITH_AS(select_unary("exp", Unary::exp, DType::i32),
                       "[exp] dtype: expected a floating dtype, got i32", Error);
  CHECK_THROWS_WITH_AS(select_binary("add", Binary::add, DType::boolean),
                       "[add] dtype: expected a numeric dtype, got bool", Error);
}
