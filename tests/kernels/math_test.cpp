// The accuracy of ops/kernels/math.h over all of the numbers that its functions take, as far as
// they are seen through the elementwise kernels of f32: in ULP of results that are normal numbers.
#include "records.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "emulated_cpu.h"
#include "quern/ops/kernels/elementwise/elementwise.h"
#include "quern/tensor/float_mode.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

// silu and gelu multiply a number of up to 100 and one that may not be below the normal range.
constexpr double kSmallest = 0x1p-119, kLargest = std::numeric_limits<float>::max();

/// Distance of f32 neighbours about y.
double ulp(double y) { return std::ldexp(1, std::max(std::ilogb(y), -126) - 23); }

/// The largest error in ULP of `got`, where the exact value is a normal f32; else what is neither
/// that value nor zero or infinity, as it should be, counts as infinite.
double worst_of(const std::vector<float>& got, const std::vector<double>& exact) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double y = exact[i], size = std::abs(y), found = static_cast<double>(got[i]);
    double error = std::abs(found - y) / ulp(y);
    if (std::isnan(y)) error = std::isnan(found) ? 0 : INFINITY;
    else if (size < kSmallest) error = std::abs(found) <= kSmallest ? 0 : INFINITY;
    else if (size > kLargest && std::isinf(found) && std::signbit(found) == std::signbit(y))
      error = 0;
    worst = std::max(worst, std::isnan(error) ? INFINITY : error);
  }
  return worst;
}

/// Every so many of the finite normal numbers, of both signs, and all about zero and one.
std::vector<float> floats() {
  std::vector<float> x{0};
  for (uint32_t bits = 0x00800000; bits < 0x7f800000; bits += kEmulatedCpu ? 99991 : 9973)
    x.push_back(std::bit_cast<float>(bits));
  for (uint32_t k = 0; k < 200; ++k)
    x.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(1.0f) - 100 + k));
  for (int k = 0; k < 20000; k += kEmulatedCpu ? 7 : 1)
    x.push_back(static_cast<float>(k) * 0.0053f);  // where it bends
  for (size_t i = x.size(); i-- > 0;) x.push_back(-x[i]);
  return x;
}

template <class Kernel, class Op>
const Kernel& reference(Op op) {
  for (const Kernel* kernel : table<Kernel>())
    if (kernel->op == op && kernel->dtype == DType::f64) return *kernel;
  throw Error("no f64 record");
}

void run(const UnaryKernel& kernel, const std::vector<float>& x, std::vector<float>& y, double p) {
  const KernelFloatMode as_ops_do;
  kernel.run(std::ssize(x), x.data(), y.data(), p, 0);
}

double worst(const UnaryKernel& kernel, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size());
  const std::vector<double> wide(x.begin(), x.end());
  std::vector<double> exact(x.size());
  run(kernel, x, y, 0);
  reference<UnaryKernel>(kernel.op).run(n, wide.data(), exact.data(), 0, 0);
  return worst_of(y, exact);
}

double worst(const BinaryKernel& kernel, const std::vector<float>& a, const std::vector<float>& b) {
  const auto n = static_cast<int64_t>(a.size());
  std::vector<float> y(a.size());
  const std::vector<double> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
  std::vector<double> exact(a.size());
  {
    const KernelFloatMode as_ops_do;
    kernel.run(n, a.data(), b.data(), y.data(), Run::dense_dense, 0, 0);
  }
  reference<BinaryKernel>(kernel.op).run(n, wide_a.data(), wide_b.data(), exact.data(),
                                         Run::dense_dense, 0, 0);
  return worst_of(y, exact);
}

}  // namespace

TEST_CASE("functions of one number are within their ULP, on all numbers") {
  const std::vector<float> x = floats();
  const auto allowed = [](Unary op) {
    switch (op) {
      case Unary::exp:
      case Unary::log: return 1.0;
      case Unary::tanh: return 1.5;
      case Unary::sigmoid:
      case Unary::silu: return 2.5;
      case Unary::gelu: return 7.0;  // in its tail, too, which 1 + erf loses
      default: return 0.0;
    }
  };
  const auto fits = [&](const UnaryKernel& kernel) {
    return kernel.dtype == DType::f32 && allowed(kernel.op) > 0;
  };
  each_runnable(table<UnaryKernel>(), fits,
                [&](const UnaryKernel& kernel) { CHECK_LE(worst(kernel, x), allowed(kernel.op)); });
}

TEST_CASE("gelu of every bf16 is rounded right, but where it is within its bound of a midpoint") {
  std::vector<bfloat16> x, y(1 << 16);
  for (uint32_t bits = 0; bits < 1 << 16; ++bits)
    x.push_back(bfloat16::from_bits(static_cast<uint16_t>(bits)));
  const std::vector<double> wide(x.begin(), x.end());
  std::vector<double> exact(x.size());
  reference<UnaryKernel>(Unary::gelu).run(1 << 16, wide.data(), exact.data(), 0, 0);
  const auto fits = [](const UnaryKernel& kernel) {
    return kernel.op == Unary::gelu && kernel.dtype == DType::bf16;
  };
  each_runnable(table<UnaryKernel>(), fits, [&](const UnaryKernel& kernel) {
    {
      const KernelFloatMode as_ops_do;
      kernel.run(1 << 16, x.data(), y.data(), 0, 0);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double size = std::abs(exact[i]), got = static_cast<double>(y[i]);
      if (!(size >= kSmallest && size <= kLargest)) continue;
      CAPTURE(wide[i]);
      const double roundoffs = 160 + 1.5 * std::min(14.5 * 14.5, wide[i] * wide[i]);
      REQUIRE_LE(std::abs(got - exact[i]), 0x1p15 * ulp(exact[i]) + 0x1p-24 * roundoffs * size);
    }
  });
}

TEST_CASE("powers of half and whole exponents are pow's, on all numbers") {
  std::vector<float> x = floats();
  for (const float special : {0.0f, -0.0f, INFINITY, -INFINITY, NAN}) x.push_back(special);
  const auto n = static_cast<int64_t>(x.size());
  const std::vector<double> wide(x.begin(), x.end());
  std::vector<double> exact(x.size());
  std::vector<float> y(x.size());
  const auto fits = [](const UnaryKernel& kernel) {
    return kernel.op == Unary::half_power && kernel.dtype == DType::f32;
  };
  each_runnable(table<UnaryKernel>(), fits, [&](const UnaryKernel& kernel) {
    for (double p = -3; p <= 3; p += 0.5) {
      CAPTURE(p);
      run(kernel, x, y, p);
      reference<UnaryKernel>(kernel.op).run(n, wide.data(), exact.data(), p, 0);
      // Each rounding is half an ULP to one: the products, the root, that of 1/x as often as it is
      // in the power.
      const double whole = std::floor(std::abs(p)), root = std::abs(p) - whole > 0;
      const double roundings = std::max(0.0, whole - 1 + 2 * root) + (p < 0 ? -p : 0);
      CHECK_LE(worst_of(y, exact), std::max(0.5, roundings));
      for (size_t i = x.size() - 5; i < x.size(); ++i) {
        CAPTURE(x[i]);
        CHECK(close(y[i], exact[i], 0, DType::f32));
      }
    }
  });
}

TEST_CASE("powers are within 2 ULP, up to the largest and the smallest") {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> exponent(-126, 128), log_y(-88, 89), about_one(-1, 1);
  std::vector<float> x, y;
  for (int k = 0; k < 400000; ++k) {
    const double base = k % 2 == 0 ? std::exp2(exponent(random)) : std::exp2(about_one(random));
    x.push_back(static_cast<float>(base));
    y.push_back(static_cast<float>(log_y(random) / std::log(base)));
    if (k % 4 == 0) x.back() = -x.back(), y.back() = std::round(y.back());
  }
  const auto fits = [](const BinaryKernel& kernel) {
    return kernel.dtype == DType::f32 && kernel.op == Binary::pow;
  };
  each_runnable(table<BinaryKernel>(), fits,
                [&](const BinaryKernel& kernel) { CHECK_LE(worst(kernel, x, y), 2); });
}
