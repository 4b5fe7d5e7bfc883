// quern_precision: the figures of the lesson on precision.
#include <fmt/core.h>

#include <cmath>
#include <vector>

#include "precision.h"

using namespace quern;
using namespace quern::lessons;

namespace {

std::vector<float> normal_numbers(int64_t n, float mean, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(n));
  fill_normal(values.data(), n, 1, stream);
  for (float& x : values) x += mean;
  return values;
}

void sums() {
  fmt::print("n ones added up           100     1000    10000   100000\n");
  const auto row = [](const char* name, auto sum) {
    fmt::print("{:20}", name);
    for (int64_t n : {100, 1000, 10000, 100000}) fmt::print("{:9.0f}", sum(n, 1.0f));
    fmt::print("\n");
  };
  row("in bf16", repeated_sum<bfloat16>);
  row("in f32", repeated_sum<float>);
}

void variances() {
  fmt::print("\nvariance of 8192 numbers, which is 1\n");
  fmt::print("their mean                  0         10       4096\n");
  const auto row = [](const char* name, auto variance) {
    fmt::print("{:18}", name);
    for (float mean : {0.0f, 10.0f, 4096.0f})
      fmt::print("{:11.2f}", variance(normal_numbers(8192, mean, 1)));
    fmt::print("\n");
  };
  row("bf16, sums", variance_of_sums<bfloat16>);
  row("bf16, differences", variance_of_differences<bfloat16>);
  row("f32, sums", variance_of_sums<float>);
  row("f32, differences", variance_of_differences<float>);
}

/// Root mean square error of sums of 1024 products, relative to that of the sums.
void products() {
  double errors[2] = {}, size = 0;
  for (uint64_t sample = 0; sample < 256; ++sample) {
    const auto a = normal_numbers(1024, 0, 2 * sample), b = normal_numbers(1024, 0, 2 * sample + 1);
    double exact = 0;
    for (size_t i = 0; i < a.size(); ++i) exact += static_cast<double>(a[i]) * b[i];
    size += exact * exact;
    for (bool three : {false, true}) errors[three] += std::pow(dot(a, b, three) - exact, 2);
  }
  fmt::print("\nerror of a sum of 1024 products\n");
  fmt::print("one of bf16 each      {:.1e}\n", std::sqrt(errors[0] / size));
  fmt::print("three of bf16 each    {:.1e}\n", std::sqrt(errors[1] / size));
}

void training() {
  fmt::print("\nloss after this many steps  1000     2000     4000\n");
  const auto row = [](const char* name, bool bf16_products, const Store& store) {
    fmt::print("{:23}", name);
    for (int steps : {1000, 2000, 4000}) fmt::print("{:9.3f}", train(steps, bf16_products, store));
    fmt::print("\n");
  };
  row("all f32", false, keep_f32);
  row("bf16 products", true, keep_f32);
  row("bf16 weights", false, keep_bf16);
  row("bf16 products, weights", true, keep_bf16);
}

}  // namespace

int main() {
  sums();
  variances();
  products();
  training();
}
