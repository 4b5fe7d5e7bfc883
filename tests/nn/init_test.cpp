#include "quern/nn/init.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "quern/tensor/raw.h"

using namespace quern;
namespace init = nn::init;

namespace {

struct Moments {
  double mean, std, low, high;
};

Moments moments(const Tensor& t) {
  auto values = t.to_vector<double>();
  double n = static_cast<double>(values.size()), mean = 0, squares = 0;
  for (double v : values) mean += v / n;
  for (double v : values) squares += (v - mean) * (v - mean) / n;
  auto [low, high] = std::ranges::minmax(values);
  return {mean, std::sqrt(squares), low, high};
}

/// n draws of deviation `std`: the sample's mean is off by std/√n, its deviation by at most
/// std/√(2n) (the normal's; the uniform's is smaller). Five such errors, for a fixed seed.
void check_moments(const Tensor& t, double std) {
  Moments m = moments(t);
  double n = static_cast<double>(t.numel());
  CHECK(std::fabs(m.mean) < 5 * std / std::sqrt(n));
  CHECK(std::fabs(m.std - std) < 5 * std / std::sqrt(2 * n));
}

/// Uniform on (-bound, bound): nothing outside, and n draws come within 20/n of both ends.
void check_uniform(const Tensor& t, double bound) {
  check_moments(t, bound / std::sqrt(3.0));
  Moments m = moments(t);
  double reach = bound * (1 - 20.0 / static_cast<double>(t.numel()));
  CHECK(m.low >= -bound);
  CHECK(m.high <= bound);
  CHECK(m.low < -reach);
  CHECK(m.high > reach);
}

}  // namespace

TEST_CASE("init: fans of linear and convolution weights") {
  CHECK(init::fans(empty({5, 7})).in == 7);
  CHECK(init::fans(empty({5, 7})).out == 5);
  CHECK(init::fans(empty({8, 4, 3, 5})).in == 60);
  CHECK(init::fans(empty({8, 4, 3, 5})).out == 120);
  CHECK_THROWS_WITH_AS(
      init::fans(empty({5})),
      "[init] weight: expected at least two dimensions and no empty one, got f32 [5]", Error);
  CHECK_THROWS_AS(init::fans(empty({5, 0})), Error);
  CHECK_THROWS_AS(init::fans({}), Error);
}

TEST_CASE("init: gains are PyTorch's") {
  using enum init::Nonlinearity;
  CHECK(init::gain(linear) == 1);
  CHECK(init::gain(sigmoid) == 1);
  CHECK(init::gain(tanh) == 5.0 / 3);
  CHECK(init::gain(relu) == std::sqrt(2.0));
  CHECK(init::gain(leaky_relu, 0) == std::sqrt(2.0));
  CHECK(init::gain(leaky_relu, std::sqrt(5.0)) == doctest::Approx(std::sqrt(1.0 / 3)));
  CHECK(init::gain(selu) == 0.75);
}

TEST_CASE("init: kaiming, xavier and the defaults have their deviations and bounds") {
  manual_seed(7);
  Tensor w = empty({64, 32, 3, 3});  // fan_in 288, fan_out 576
  init::kaiming_normal_(w, {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu});
  check_moments(w, std::sqrt(2.0 / 576));
  init::kaiming_normal_(w, {.a = 1});
  check_moments(w, std::sqrt(1.0 / 288));
  init::kaiming_uniform_(w);
  check_uniform(w, std::sqrt(6.0 / 288));
  init::xavier_uniform_(w, 2);
  check_uniform(w, 2 * std::sqrt(6.0 / (288 + 576)));
  init::xavier_normal_(w);
  check_moments(w, std::sqrt(2.0 / (288 + 576)));

  Tensor bias = empty({4000});
  init::default_(w, bias);
  check_uniform(w, 1 / std::sqrt(288.0));
  check_uniform(bias, 1 / std::sqrt(288.0));
  init::constant_(bias, 0.5);
  CHECK(moments(bias).low == 0.5);
  CHECK(moments(bias).high == 0.5);
}

TEST_CASE("init: a seed gives the same values again, whatever the strides") {
  Tensor a = empty({8, 4, 3, 3}), b = empty({8, 4, 3, 3}, DType::f32, MemoryFormat::channels_last);
  manual_seed(3);
  init::kaiming_normal_(a);
  manual_seed(3);
  init::kaiming_normal_(b);
  CHECK(a.to_vector<float>() == b.to_vector<float>());
  init::kaiming_normal_(b);
  CHECK(a.to_vector<float>() != b.to_vector<float>());

  Generator g(3), h(3);
  init::kaiming_normal_(a, {}, g);
  init::kaiming_normal_(b, {}, h);
  CHECK(a.to_vector<float>() == b.to_vector<float>());
}
