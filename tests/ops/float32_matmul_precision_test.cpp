// What set_float32_matmul_precision() makes of matmul and linear.
#include "quern/ops/float32_matmul_precision.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "gradcheck_helper.h"
#include "quern/autograd/node.h"
#include "quern/ops/autocast.h"
#include "quern/ops/linear.h"
#include "quern/ops/matmul.h"
#include "quern/ops/matrix.h"
#include "tensor/run_self.h"

using namespace quern;
using test::random;

namespace {

/// Sets a precision, and how fast bf16 is taken to be, for a scope.
class Precision {
 public:
  explicit Precision(std::string_view precision, int bf16_speed = 4)
      : before_(get_float32_matmul_precision()) {
    set_float32_matmul_precision(precision);
    assume_bf16_speed(bf16_speed);
  }
  ~Precision() {
    set_float32_matmul_precision(before_);
    assume_bf16_speed(0);
  }

 private:
  std::string_view before_;
};

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

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), test::same_bits);
}

}  // namespace

// Roundings are as good as independent and as often up as down, so that the error of a sum beside the
// sums is that of a product beside the product. One bf16 (roundoff u = 2^-8) is off by 0.4u on
// average, two by 0.17u²; two or three such errors add. The upper bounds are what a
// product can be off at most, the lower ones tell a precision from the next better; 70 terms in f32
// leave some 2^-22.
TEST_CASE("float32 precision: forward and backward of matmul and linear err as much as it says") {
  struct Expected {
    std::string_view precision;
    double least, most;
  };
  constexpr double u = 0x1p-8;
  for (bool by_linear : {false, true}) {
    const auto exact = multiply(DType::f64, by_linear);
    for (auto [precision, least, most] : {Expected{"highest", 0, 0x1p-21},
                                          {"high", u * u / 16, 3 * u * u},
                                          {"medium", u / 8, 2 * u}}) {
      const Precision scope(precision);
      const auto got = multiply(DType::f32, by_linear);
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = test::relative_difference(got[i], exact[i]);
        INFO(std::string(precision), " output ", i, by_linear ? " of linear" : " of matmul");
        CHECK(error >= least);
        CHECK(error <= most);
      }
    }
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
    return all;
  };
  const auto before = both();
  const Precision medium("medium");
  CHECK(same(both(), before));
}

TEST_CASE("float32 precision: a packed weight is kept for each") {
  const Tensor x = random({5, 40}, 1, DType::f32), w = random({9, 40}, 2, DType::f32);
  const auto product = [&](std::string_view precision) {
    const Precision scope(precision);
    return linear(x, w);
  };
  const Tensor highest = product("highest"), high = product("high"), medium = product("medium");
  CHECK_FALSE(test::same_bits(highest, high));
  CHECK_FALSE(test::same_bits(high, medium));
  for (int i = 0; i < 2; ++i) {
    CHECK(test::same_bits(product("medium"), medium));
    CHECK(test::same_bits(product("high"), high));
    CHECK(test::same_bits(product("highest"), highest));
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
