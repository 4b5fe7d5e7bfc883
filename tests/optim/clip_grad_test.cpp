#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "quern/optim/clip_grad.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/random.h"
#include "quern/tensor/raw.h"
#include "tensor/threads.h"

using namespace quern;
using optim::clip_grad_norm_;

namespace {

Tensor with_grad(const Tensor& grad) {
  Tensor param = zeros(grad.shape(), grad.dtype()).requires_grad_();
  param.set_grad(grad);
  return param;
}

}  // namespace

TEST_CASE("clip_grad_norm_ returns the norm and scales what is above the bound") {
  Tensor a = with_grad(from_vector<float>({3, 0, 0})), b = with_grad(from_vector<float>({0, -4}));
  Tensor idle = zeros({5}).requires_grad_();
  CHECK(clip_grad_norm_({a, b, idle}, 10) == 5);
  CHECK(a.grad().to_vector<float>()[0] == 3);

  CHECK(clip_grad_norm_({a, b, idle}, 1) == 5);
  // The factor 1/(5+1e-6), its rounding to f32 and the product's: twice 2^-24.
  const double factor = 1 / (5 + 1e-6), u = 0x1p-24;
  CHECK(std::abs(a.grad().to_vector<double>()[0] - 3 * factor) <= 2.1 * u * 3 * factor);
  CHECK(std::abs(b.grad().to_vector<double>()[1] + 4 * factor) <= 2.1 * u * 4 * factor);
  CHECK(clip_grad_norm_({}, 1) == 0);
}

TEST_CASE("clip_grad_norm_ takes any dtype and strides") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor whole = randn({37, 53}, dtype);
    const Tensor grad = raw::slice(raw::transpose(whole, 0, 1), 0, 0, 53, 2);
    long double sum = 0;
    for (double g : grad.to_vector<double>()) sum += static_cast<long double>(g) * g;
    const auto before = grad.to_vector<double>();
    const double norm = clip_grad_norm_({with_grad(grad)}, 0.5);
    // 37·27 = 999 squares, each rounded, and as many sums, in f64; half of that after the root.
    CHECK(std::abs(norm - static_cast<double>(std::sqrt(sum))) <= 1000 * 0x1p-53 * norm);

    const double factor = 0.5 / (norm + 1e-6);
    const double u = dtype == DType::bf16 ? 0x1.02p-8 : dtype == DType::f32 ? 0x1p-24 : 0x1p-53;
    const auto after = grad.to_vector<double>();
    for (size_t i = 0; i < after.size(); ++i)
      REQUIRE(std::abs(after[i] - before[i] * factor) <= 2.1 * u * std::abs(before[i] * factor));
  }
}

TEST_CASE("clip_grad_norm_ of any number of threads has the same bits") {
  const test::Threads kept;
  const Tensor grad = randn({100'003});
  double norms[3];
  for (int n : {1, 2, 3}) {
    set_num_threads(n);
    norms[n - 1] = clip_grad_norm_({with_grad(grad)}, 1e9);
  }
  CHECK(norms[0] == norms[1]);
  CHECK(norms[0] == norms[2]);
}

TEST_CASE("clip_grad_norm_ shows a gradient that is not finite, and refuses a bad bound") {
  Tensor param = with_grad(from_vector<float>({1, std::numeric_limits<float>::infinity()}));
  CHECK(std::isinf(clip_grad_norm_({param}, 1)));
  CHECK(std::isnan(param.grad().to_vector<float>()[1]));
  CHECK_THROWS_WITH_AS(clip_grad_norm_({param}, -1),
                       "[clip_grad_norm_] max_norm: expected at least 0, got -1", Error);
  CHECK_THROWS_AS(clip_grad_norm_({param}, std::nan("")), Error);
  CHECK_THROWS_AS(clip_grad_norm_({Tensor()}, 1), Error);
}
