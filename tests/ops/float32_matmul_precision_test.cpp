// What set_float32_matmul_precision() makes of matmul, linear and conv2d.
#include "quern/ops/float32_matmul_precision.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "gradcheck_helper.h"
#include "precision_scope.h"
#include "quern/autograd/grad_mode.h"
#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/conv2d.h"
#include "quern/ops/detail/conv_problem.h"
#include "quern/ops/linear.h"
#include "quern/ops/matmul.h"
#include "tensor/run_self.h"

using namespace quern;
using test::Precision, test::random;

namespace {

/// Output and gradients of a product of f32 or, of exactly the same values, f64.
Tensors multiply(DType dtype, bool by_linear) {
  const auto values = [&](const Shape& shape, uint64_t seed) {
    return raw::to(random(shape, seed, DType::f32), dtype);
  };
  Tensor a = values({33, 70}, 1).requires_grad_();
  Tensor b = values(by_linear ? Shape{41, 70} : Shape{70, 41}, 2).requires_grad_();
  const Tensor y = by_linear ? linear(a, b) : matmul(a, b);
  y.backward(raw::to(values({33, 41}, 3), y.dtype()));
  return {y.detach(), a.grad(), b.grad()};
}

struct Conv {
  Shape x, weight;
  Pair stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};
const Conv kConvs[] = {
    {{2, 33, 9, 11}, {35, 33, 3, 3}, 1, 1},
    {{1, 70, 5, 7}, {41, 70, 1, 1}},
    {{2, 17, 13, 12}, {19, 17, 3, 5}, {2, 1}, {1, 2}},
    {{2, 16, 12, 13}, {9, 16, 3, 2}, 1, 2, 2},
    {{1, 36, 9, 8}, {34, 18, 3, 3}, 2, 1, 1, 2},
    {{2, 4, 19, 23}, {20, 4, 7, 7}, 2, 3},
    {{1, 65, 8, 8}, {30, 65, 1, 1}, 2},
};

/// The same of a convolution.
Tensors convolve(const Conv& c, DType dtype, MemoryFormat format) {
  const auto values = [&](const Shape& shape, uint64_t seed, MemoryFormat format) {
    return raw::contiguous(raw::to(random(shape, seed, DType::f32), dtype), format);
  };
  Tensor x = values(c.x, 1, format).requires_grad_();
  Tensor w = values(c.weight, 2, MemoryFormat::contiguous).requires_grad_();
  const Tensor y = conv2d(x, w, {}, c.stride, c.padding, c.dilation, c.groups);
  y.backward(values(y.shape(), 3, format));
  return {y.detach(), x.grad(), w.grad()};
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), test::same_bits);
}

}  // namespace

// Roundings are as good as independent and as often up as down, so that the error of a sum beside
// the sums is that of a product beside the product. One bf16 (roundoff u = 2^-8) is off by 0.4u on
// average, two by 0.17u²; two or three such errors add. The upper bounds are what a product can be
// off at most, the lower ones tell a precision from the next better; 70 terms in f32 leave some
// 2^-22.
TEST_CASE("float32 precision: forward and backward err as much as it says") {
  struct Expected {
    std::string_view precision;
    double least, most;
  };
  constexpr double u = 0x1p-8;
  const auto check = [](auto run, const std::string& what) {
    const auto exact = run(DType::f64);
    for (auto [precision, least, most] : {Expected{"highest", 0, 0x1p-21},
                                          {"high", u * u / 16, 3 * u * u},
                                          {"medium", u / 8, 2 * u}}) {
      const Precision scope(precision, 8);
      const auto got = run(DType::f32);
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = test::relative_difference(got[i], exact[i]);
        INFO(std::string(precision), " output ", i, " of ", what);
        CHECK(got[i].dtype() == DType::f32);
        CHECK(error >= least);
        CHECK(error <= most);
      }
    }
  };
  check([](DType dtype) { return multiply(dtype, false); }, "matmul");
  check([](DType dtype) { return multiply(dtype, true); }, "linear");
  for (const Conv& c : kConvs)
    for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      check([&](DType dtype) { return convolve(c, dtype, format); },
            fmt::format("conv2d {} {}", to_string(c.weight), to_string(format)));
}

TEST_CASE("float32 precision: convolutions for which IEEE f32 is as fast") {
  using enum kernels::ConvPass;
  const auto name = [](std::string_view precision, int speed, kernels::ConvProblem p,
                       kernels::ConvPass pass) {
    const Precision scope(precision, speed);
    return detail::conv_plan(p, pass)->name();
  };
  const auto problem = [](int64_t channels, int64_t size, int64_t kernel, int64_t groups) {
    return detail::conv_problem({1, channels, size, size}, DType::f32, MemoryFormat::channels_last,
                                empty({channels, channels / groups, kernel, kernel}), 1, kernel / 2,
                                1, groups);
  };
  for (kernels::ConvPass pass : {forward, dgrad, wgrad}) {
    CHECK(name("medium", 2, problem(64, 28, 1, 1), pass).starts_with("brgemm_bf16:gemm_bf16_"));
    CHECK(name("high", 8, problem(64, 28, 1, 1), pass).starts_with("brgemm_bf16x3:gemm_bf16_"));
    CHECK(name("high", 3, problem(64, 28, 1, 1), pass).starts_with("brgemm:gemm_f32_"));
    // Winograd's F(4×4, 3×3), which the gradient of the weight has not.
    const std::string twice = name("medium", 2, problem(64, 28, 3, 1), pass);
    CHECK(twice.starts_with(pass == wgrad ? "brgemm_bf16:" : "winograd_4x4:gemm_f32_"));
    CHECK(name("medium", 4, problem(64, 28, 3, 1), pass).starts_with("brgemm_bf16:"));
    CHECK(name("medium", 2, problem(64, 14, 3, 1), pass).starts_with("brgemm_bf16:"));
    CHECK(name("high", 8, problem(64, 28, 3, 1), pass).starts_with("brgemm_bf16x3:"));
    kernels::ConvProblem contiguous = problem(64, 28, 1, 1);
    contiguous.format = MemoryFormat::contiguous;
    CHECK(name("medium", 2, contiguous, pass)
              .starts_with(pass == wgrad ? "brgemm:gemm_f32_" : "brgemm_bf16:"));
    // few outputs
    kernels::ConvProblem few = problem(64, 28, 3, 1);
    (pass == dgrad ? few.ic : few.oc) = 3;
    CHECK(name("medium", 2, few, pass)
              .starts_with(pass == wgrad ? "brgemm_bf16:" : "kn2row:gemm_f32_"));
    CHECK(name("medium", 8, few, pass).starts_with("brgemm_bf16:"));
    CHECK(name("high", 8, few, pass)
              .starts_with(pass == wgrad ? "brgemm_bf16x3:" : "kn2row:gemm_f32_"));
    // few channels a group
    CHECK(name("medium", 8, problem(60, 28, 3, 5), pass).starts_with("brgemm:gemm_f32_"));
    CHECK(name("medium", 8, problem(64, 28, 3, 32), pass) == "depthwise");
    CHECK(name("medium", 8, problem(64, 28, 3, 64), pass) == "depthwise");
    CHECK(name("medium", 8, problem(64, 28, 3, 2), pass).starts_with("brgemm_bf16:"));
  }
}

TEST_CASE("float32 precision: IEEE f32 where three products, or one, take as long") {
  const Precision highest("highest");
  const auto ieee = multiply(DType::f32, true);
  {
    const Precision high("high", 3);
    CHECK(same(multiply(DType::f32, true), ieee));
  }
  {
    const Precision medium("medium", 1);
    CHECK(same(multiply(DType::f32, true), ieee));
  }
  const Precision medium("medium", 2);
  CHECK_FALSE(same(multiply(DType::f32, true), ieee));
}

TEST_CASE("float32 precision: f64 and autocast don't heed it") {
  const auto both = [] {
    const AutocastGuard autocast;
    Tensors all = multiply(DType::f64, false);
    for (const Tensor& t : multiply(DType::f32, true)) all.push_back(t);
    for (const Tensor& t : convolve(kConvs[0], DType::f32, MemoryFormat::channels_last))
      all.push_back(t);
    return all;
  };
  const auto before = both();
  const Precision medium("medium");
  CHECK(same(both(), before));
}

TEST_CASE("float32 precision: a packed weight is kept for each") {
  const Tensor x = random({5, 40}, 1, DType::f32), w = random({9, 40}, 2, DType::f32);
  const Tensor images = random({1, 40, 3, 5}, 3, DType::f32),
               filters = random({9, 40, 1, 1}, 4, DType::f32);
  const auto product = [&](std::string_view precision) {
    const Precision scope(precision);
    const NoGradGuard inference;
    return Tensors{linear(x, w), conv2d(images, filters)};
  };
  const Tensors highest = product("highest"), high = product("high"), medium = product("medium");
  for (size_t i : {0u, 1u}) {
    CHECK_FALSE(test::same_bits(highest[i], high[i]));
    CHECK_FALSE(test::same_bits(high[i], medium[i]));
  }
  for (int i = 0; i < 2; ++i) {
    CHECK(same(product("medium"), medium));
    CHECK(same(product("high"), high));
    CHECK(same(product("highest"), highest));
  }
}

TEST_CASE("float32 precision: names") {
  for (std::string_view name : {"highest", "high", "medium"}) {
    const Precision scope(name);
    CHECK(get_float32_matmul_precision() == name);
  }
  CHECK_THROWS_WITH_AS(
      set_float32_matmul_precision("low"),
      "[float32_matmul_precision] precision: expected highest, high or medium, got \"low\"", Error);
}

TEST_CASE("child: float32 precision" * doctest::skip()) {
  fmt::print("precision: {}\n", get_float32_matmul_precision());
}

TEST_CASE("float32 precision: QUERN_DEFAULT_FPMATH_MODE") {
  using test::contains, test::run_self;
  const auto child = [](const std::string& mode) {
    return run_self("QUERN_DEFAULT_FPMATH_MODE=" + mode, "child: float32 precision");
  };
  CHECK(contains(child(""), "precision: highest\n"));
  CHECK(contains(child("STRICT"), "precision: highest\n"));
  CHECK(contains(child("BF16"), "precision: medium\n"));
  CHECK(
      contains(child("TF32"),
               "[float32_matmul_precision] QUERN_DEFAULT_FPMATH_MODE: expected STRICT or BF16, got "
               "\"TF32\""));
}
