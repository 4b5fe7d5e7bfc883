// The pools against their definition in f64, by gradcheck, and their errors.
#include <doctest/doctest.h>

#include "gradcheck_helper.h"
#include "quern/ops/adaptive_avg_pool2d.h"
#include "quern/ops/autocast.h"
#include "quern/ops/avg_pool2d.h"
#include "quern/ops/max_pool2d.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::test;

namespace {

constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

/// Fills y [N,C,OH,OW] with f(plane of x, oh, ow).
template <class F>
Tensor by_plane(const Tensor& x, int64_t oh, int64_t ow, F f) {
  const auto values = x.to_vector<double>();
  std::vector<double> y;
  const int64_t plane = x.size(2) * x.size(3);
  for (int64_t p = 0; p < x.size(0) * x.size(1); ++p)
    for (int64_t i = 0; i < oh; ++i)
      for (int64_t j = 0; j < ow; ++j) y.push_back(f(values.data() + p * plane, i, j));
  return from_vector(y, {x.size(0), x.size(1), oh, ow});
}

/// f64 leaves whose values lie 0.01 apart, so that a step of gradcheck changes no maximum.
Tensor distinct(const Shape& shape, MemoryFormat format) {
  Tensor t = empty(shape, DType::f64, format);
  std::vector<double> values(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 0.01 * static_cast<double>(i * 37 % values.size());
  raw::copy_(t, from_vector(values, shape));
  return t.requires_grad_();
}

}  // namespace

TEST_CASE("max_pool2d takes the largest of each window") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (MemoryFormat format : kFormats)
      for (bool ceil_mode : {false, true}) {
        const Tensor x = random({2, 21, 8, 9}, 1, dtype, format);
        const Tensor y = max_pool2d(x, {3, 2}, Pair{2, 3}, {1, 0}, {2, 1}, ceil_mode);
        CHECK(y.dtype() == dtype);
        CHECK(y.format() == format);
        // Rows: (8 + 2 - 5)/2, columns (9 - 2)/3; rounded up, the last window starts at 5 and
        // 9 - not inside.
        const Shape shape{2, 21, ceil_mode ? 4 : 3, 3};
        REQUIRE(y.shape() == shape);
        const Tensor expected =
            by_plane(x, shape[2], shape[3], [](const double* plane, int64_t i, int64_t j) {
              double best = -INFINITY;
              for (int64_t h = i * 2 - 1; h < i * 2 + 4; h += 2)
                for (int64_t w = j * 3; w < j * 3 + 2; ++w)
                  if (h >= 0 && h < 8 && w < 9) best = std::max(best, plane[h * 9 + w]);
              return best;
            });
        CHECK(max_abs_difference(y, expected) == 0);
        CHECK(max_abs_difference(
                  max_pool2d(strided(x), {3, 2}, Pair{2, 3}, {1, 0}, {2, 1}, ceil_mode),
                  expected) == 0);
      }
}

TEST_CASE("max_pool2d gives the gradient to the first maximum, and a NaN wins") {
  for (int64_t channels : {1, 20})
    for (MemoryFormat format : kFormats) {
      Tensor x = full({1, channels, 2, 4}, 1, DType::f32, format);
      raw::fill_(raw::select(raw::select(x, 2, 1), 2, 2), NAN);
      x.requires_grad_();
      const Tensor y = max_pool2d(x, 2);
      CHECK(y.to_vector<float>()[0] == 1);
      CHECK(std::isnan(y.to_vector<float>()[1]));
      y.backward(full({1, channels, 1, 2}, 2));
      const auto dx = x.grad().to_vector<float>();
      for (size_t c = 0; c < static_cast<size_t>(channels); ++c)
        CHECK(std::vector<float>(dx.begin() + static_cast<long>(c * 8),
                                 dx.begin() + static_cast<long>(c * 8 + 8)) ==
              std::vector<float>{2, 0, 0, 0, 0, 0, 2, 0});
    }
}

TEST_CASE("max_pool2d numbers more taps than a float counts") {
  for (MemoryFormat format : kFormats) {
    Tensor x = random({1, 3, 4, 4}, 1, DType::f32, format).requires_grad_();
    Tensor x64 = raw::to(x.detach(), DType::f64).requires_grad_();
    const int64_t kernel = 1 << 13;  // 2^26 taps, all of x in the middle of them
    const Tensor y = max_pool2d(x, kernel, 1, kernel / 2);
    max_pool2d(x64, kernel, 1, kernel / 2).backward(ones({1, 3, 5, 5}, DType::f64));
    y.backward(ones({1, 3, 5, 5}));
    CHECK(max_abs_difference(x.grad(), x64.grad()) == 0);
    const auto gradients = x.grad().to_vector<double>();
    CHECK(std::count(gradients.begin(), gradients.end(), 25) == 3);
  }
}

TEST_CASE("avg_pool2d divides by what it counts") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (MemoryFormat format : kFormats)
      for (bool ceil_mode : {false, true})
        for (bool count_include_pad : {false, true}) {
          const Tensor x = random({2, 19, 8, 9}, 1, dtype, format);
          const Tensor y = avg_pool2d(x, 3, 2, 1, ceil_mode, count_include_pad);
          CHECK(y.dtype() == dtype);
          CHECK(y.format() == format);
          const Shape shape{2, 19, ceil_mode ? 5 : 4, 5};
          REQUIRE(y.shape() == shape);
          const Tensor expected =
              by_plane(x, shape[2], 5, [&](const double* plane, int64_t i, int64_t j) {
                double sum = 0;
                int64_t inside = 0, padded = 0;
                for (int64_t h = i * 2 - 1; h < i * 2 + 2; ++h)
                  for (int64_t w = j * 2 - 1; w < j * 2 + 2; ++w) {
                    if (h < 9 && w < 10) ++padded;
                    if (h < 0 || h >= 8 || w < 0 || w >= 9) continue;
                    ++inside, sum += plane[h * 9 + w];
                  }
                return sum / static_cast<double>(count_include_pad ? padded : inside);
              });
          // Sums of nine numbers below 1 and a division; bf16 rounds once more.
          const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          CHECK_LE(max_abs_difference(y, expected), 10 * u + (dtype == DType::bf16 ? 0x1p-9 : 0));
        }
}

TEST_CASE("adaptive_avg_pool2d covers x with windows") {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (MemoryFormat format : kFormats)
      for (const Pair out : {Pair(1), Pair(3, 5), Pair(9, 2), Pair(7, 8)}) {
        const Tensor x = random({2, 19, 7, 8}, 1, dtype, format);
        const Tensor y = adaptive_avg_pool2d(x, out);
        CHECK(y.dtype() == dtype);
        CHECK(y.is_dense_as(format));
        const Tensor expected =
            by_plane(x, out.h, out.w, [&](const double* plane, int64_t i, int64_t j) {
              double sum = 0, count = 0;
              for (int64_t h = i * 7 / out.h; h * out.h < (i + 1) * 7; ++h)
                for (int64_t w = j * 8 / out.w; w * out.w < (j + 1) * 8; ++w)
                  ++count, sum += plane[h * 8 + w];
              return sum / count;
            });
        REQUIRE(y.shape() == expected.shape());
        // Numbers below 1, summed over 8 columns and 7 rows, and a division; bf16 rounds once more.
        const double u = dtype == DType::f64 ? 2 * 0x1p-53 : 0x1p-24;
        CHECK_LE(max_abs_difference(y, expected), 16 * u + (dtype == DType::bf16 ? 0x1p-9 : 0));
      }
}

TEST_CASE("gradients of the pools") {
  for (MemoryFormat format : kFormats) {
    const auto check_pool = [&](const std::function<Tensor(const Tensor&)>& pool) {
      check_gradients([&](const Tensors& in) { return pool(in[0]); },
                      {distinct({2, 3, 7, 6}, format)});
    };
    check_pool([](const Tensor& x) { return max_pool2d(x, 3, 2, 1); });
    check_pool([](const Tensor& x) {
      return max_pool2d(x, {2, 3}, Pair{1, 2}, {1, 1}, {2, 1}, true);
    });
    check_pool([](const Tensor& x) { return max_pool2d(x, 2); });
    check_pool([](const Tensor& x) { return avg_pool2d(x, 3, 2, 1, true); });
    check_pool([](const Tensor& x) {
      return avg_pool2d(x, {2, 3}, Pair{3, 1}, {0, 1}, false, false);
    });
    check_pool([](const Tensor& x) { return adaptive_avg_pool2d(x, 1); });
    check_pool([](const Tensor& x) { return adaptive_avg_pool2d(x, {3, 8}); });
  }
}

TEST_CASE("the pools give the same bits for any number of threads") {
  const test::Threads kept;
  for (MemoryFormat format : kFormats) {
    const auto run = [&](int n) {
      set_num_threads(n);
      Tensors results;
      for (int op = 0; op < 3; ++op) {
        Tensor x = random({3, 40, 33, 31}, 1, DType::bf16, format).requires_grad_();
        const Tensor y = op == 0   ? max_pool2d(x, 3, 2, 1)
                         : op == 1 ? avg_pool2d(x, 3, 2, 1)
                                   : adaptive_avg_pool2d(x, {5, 1});
        y.backward(random(y.shape(), 2, DType::bf16));
        results.push_back(y), results.push_back(x.grad());
      }
      return results;
    };
    const Tensors one = run(1);
    for (int n : {2, 3}) {
      const Tensors other = run(n);
      for (size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], other[i]));
    }
  }
}

TEST_CASE("the pools follow the dtype of x under autocast") {
  const AutocastGuard guard;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random({1, 2, 4, 4}, 1, dtype);
    CHECK(max_pool2d(x, 2).dtype() == dtype);
    CHECK(avg_pool2d(x, 2).dtype() == dtype);
    CHECK(adaptive_avg_pool2d(x, 2).dtype() == dtype);
  }
}

TEST_CASE("the pools refuse what they cannot do") {
  const Tensor x = random({1, 2, 5, 5}, 1, DType::f32);
  CHECK_THROWS_WITH_AS(
      max_pool2d({}, 2),
      "[max_pool2d] x: expected a floating, non-empty tensor [N,C,H,W], got undefined", Error);
  CHECK_THROWS_WITH_AS(
      avg_pool2d(ones({2, 5, 5}), 2),
      "[avg_pool2d] x: expected a floating, non-empty tensor [N,C,H,W], got f32 [2,5,5]", Error);
  CHECK_THROWS_WITH_AS(
      adaptive_avg_pool2d(zeros({0, 2, 5, 5}), 1),
      "[adaptive_avg_pool2d] x: expected a floating, non-empty tensor [N,C,H,W], got f32 [0,2,5,5]",
      Error);
  CHECK_THROWS_WITH_AS(
      max_pool2d(ones({1, 2, 5, 5}, DType::i64), 2),
      "[max_pool2d] x: expected a floating, non-empty tensor [N,C,H,W], got i64 [1,2,5,5]", Error);
  CHECK_THROWS_WITH_AS(max_pool2d(x, {2, 0}),
                       "[max_pool2d] kernel: expected 1 or more (below 2^31), got (2,0)", Error);
  CHECK_THROWS_WITH_AS(max_pool2d(ones({1, 1, 2, 2}), 1 << 16, 1, 1 << 15),
                       "[max_pool2d] kernel: expected less than 2^31 taps, got (65536,65536)",
                       Error);
  CHECK_THROWS_WITH_AS(avg_pool2d(x, 2, 0),
                       "[avg_pool2d] stride: expected 1 or more (below 2^31), got (0,0)", Error);
  CHECK_THROWS_WITH_AS(max_pool2d(x, 2, 1, 0, -1),
                       "[max_pool2d] dilation: expected 1 or more (below 2^31), got (-1,-1)",
                       Error);
  CHECK_THROWS_WITH_AS(max_pool2d(x, 3, 1, 2),
                       "[max_pool2d] padding: expected 0 to half of kernel (3,3), got (2,2)",
                       Error);
  CHECK_THROWS_WITH_AS(avg_pool2d(x, 3, 1, -1),
                       "[avg_pool2d] padding: expected 0 to half of kernel (3,3), got (-1,-1)",
                       Error);
  CHECK_THROWS_WITH_AS(
      max_pool2d(x, 3, 1, 0, {1, 3}),
      "[max_pool2d] x: expected room for a window of kernel (3,3), dilation (1,3), padding "
      "(0,0), got f32 [1,2,5,5]",
      Error);
  CHECK_THROWS_AS(avg_pool2d(x, 1 << 30, 1 << 30), Error);
  CHECK_THROWS_WITH_AS(
      adaptive_avg_pool2d(x, {1, 0}),
      "[adaptive_avg_pool2d] output_size: expected 1 or more (below 2^31), got (1,0)", Error);
  CHECK_THROWS_WITH_AS(
      adaptive_avg_pool2d(x, INT32_MAX),
      "[shape] sizes: expected a product below 2^60 elements, got [1,2,2147483647,2147483647]",
      Error);
}
