// Every column record against the f64 reference, over numbers of rows and columns around vectors,
// strips and blocks.
#include "records.h"

#include <limits>
#include <random>

#include "quern/ops/kernels/reduce/column.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> uniform(int64_t n, double low, double high, DType dtype, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) value = draw(engine);
  return Buffer(dtype, values).values();
}

/// A matrix and its columns' results; what lies between the rows of y must survive.
struct Problem {
  Problem(ColumnOp op, DType dtype, int64_t rows, int64_t n, DType held_in)
      : rows(rows),
        n(n),
        stride(n + 3),
        x(dtype,
          uniform(rows * stride, -5, op == ColumnOp::log_softmax_backward ? 0 : 5, held_in, 1)),
        dy(dtype, uniform(rows * stride, -1, 1, held_in, 2)),
        y(dtype, std::vector<double>(static_cast<size_t>(rows * stride), kBetween)),
        index(static_cast<size_t>(n), -1) {}

  void run(const ColumnKernel& kernel) {
    kernel.run({.rows = rows,
                .n = n,
                .stride = stride,
                .x = x.data(),
                .dy = dy.data(),
                .y = y.data(),
                .index = index.data()});
  }
  int64_t at(int64_t r, int64_t i) const { return r * stride + i; }

  static constexpr double kBetween = 0.375;
  int64_t rows, n, stride;
  Buffer x, dy, y;
  std::vector<int64_t> index;
};

/// Sizes of what a column's backward sums up.
struct Sizes {
  double dots = 0, dys = 0;
};

std::vector<Sizes> sizes_of(Problem& p) {
  std::vector<Sizes> sizes(static_cast<size_t>(p.n));
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t i = 0; i < p.n; ++i) {
      auto& [dots, dys] = sizes[static_cast<size_t>(i)];
      const double dy = p.dy[p.at(r, i)];
      dots += std::abs(p.x[p.at(r, i)] * dy);
      dys += std::abs(dy);
    }
  return sizes;
}

/// Error of an element of a column in f32 roundoffs: as for rows (reduce_test.cpp), a sum being a
/// chain of at most 256 additions and one a block.
double bound(ColumnOp op, int64_t rows, double x, const Sizes& sizes, double expected) {
  constexpr double range = 10;
  const double magnitude = std::abs(expected), log_n = std::log(static_cast<double>(rows));
  const double depth = static_cast<double>(std::min<int64_t>(rows, 256) + rows / 256 + 1);
  const double sum_of_exps = depth + 2 + range;  // relative
  switch (op) {
    case ColumnOp::max: return 0;
    case ColumnOp::softmax: return (2 + range + sum_of_exps + 2) * magnitude;
    case ColumnOp::log_softmax: return range + sum_of_exps + 2 * (range + log_n) + magnitude;
    case ColumnOp::softmax_backward: return std::abs(x) * (depth + 1) * sizes.dots + 2 * magnitude;
    case ColumnOp::log_softmax_backward: return std::exp(x) * (depth + 3) * sizes.dys + magnitude;
  }
  return 0;
}

const ColumnKernel& f64_reference(ColumnOp op) {
  for (const ColumnKernel* kernel : table<ColumnKernel>())
    if (kernel->op == op && kernel->dtype == DType::f64) return *kernel;
  throw Error("no f64 record");
}

}  // namespace

TEST_CASE("column kernels are within their bounds") {
  each_runnable(table<ColumnKernel>(), [](const ColumnKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    for (const int64_t rows : {1, 2, 7, 256, 257, 600})
      for (const int64_t n : {1, 3, 8, 16, 31, 64, 65, 83}) {
        if (rows > 7 && n > 31) continue;
        CAPTURE(rows);
        CAPTURE(n);
        Problem got(kernel.op, kernel.dtype, rows, n, kernel.dtype);
        Problem expected(kernel.op, DType::f64, rows, n, kernel.dtype);
        got.run(kernel);
        expected.run(f64_reference(kernel.op));
        REQUIRE(got.y.guarded());
        if (kernel.op == ColumnOp::max) REQUIRE_EQ(got.index, expected.index);
        const std::vector<Sizes> sizes = sizes_of(expected);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < got.stride; ++i) {
            const double value = got.y[got.at(r, i)], right = expected.y[got.at(r, i)];
            if (i >= n) {
              REQUIRE_EQ(value, Problem::kBetween);
              continue;
            }
            CAPTURE(r);
            CAPTURE(i);
            CAPTURE(value);
            CAPTURE(right);
            const double x = expected.x[expected.at(r, i)];
            REQUIRE(close(value, right,
                          bound(kernel.op, rows, x, sizes[static_cast<size_t>(i)], right),
                          kernel.dtype));
          }
      }
  });
}

TEST_CASE("a column's bits do not depend on its place") {
  each_runnable(table<ColumnKernel>(), [](const ColumnKernel& kernel) {
    Problem all(kernel.op, kernel.dtype, 40, 83, kernel.dtype);
    all.run(kernel);
    for (int64_t i = 0; i < all.n; ++i) {
      Buffer y(kernel.dtype, 40 * all.stride);
      int64_t index = -1;
      kernel.run({.rows = 40,
                  .n = 1,
                  .stride = all.stride,
                  .x = all.x.at(i),
                  .dy = all.dy.at(i),
                  .y = y.data(),
                  .index = &index});
      REQUIRE_EQ(index, all.index[static_cast<size_t>(i)]);
      for (int64_t r = 0; r < (kernel.op == ColumnOp::max ? 1 : 40); ++r)
        REQUIRE_EQ(y[r * all.stride], all.y[all.at(r, i)]);
    }
  });
}

TEST_CASE("columns take the first of equals and the first NaN, and do not overflow") {
  each_runnable(table<ColumnKernel>(), [](const ColumnKernel& kernel) {
    const int64_t rows = 9, n = 21;
    const auto filled = [&](auto value) {
      std::vector<double> all;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; ++i) all.push_back(value(r, i));
      return Buffer(kernel.dtype, all);
    };
    Buffer y(kernel.dtype, rows * n);
    std::vector<int64_t> index(n, -1);
    const auto run = [&](Buffer x) {
      kernel.run(
          {.rows = rows, .n = n, .stride = n, .x = x.data(), .y = y.data(), .index = index.data()});
    };
    if (kernel.op == ColumnOp::max) {
      run(filled([](int64_t r, int64_t i) { return r % 3 == i % 3 ? 7.0 : -2.0; }));
      for (int64_t i = 0; i < n; ++i) CHECK_EQ(index[static_cast<size_t>(i)], i % 3);
      run(filled([](int64_t r, int64_t i) { return r % 4 == i % 4 ? kNaN : kInf; }));
      for (int64_t i = 0; i < n; ++i) {
        CHECK_EQ(index[static_cast<size_t>(i)], i % 4);
        CHECK(std::isnan(y[i]));
      }
      run(filled([](int64_t, int64_t) { return -kInf; }));
      for (int64_t i = 0; i < n; ++i) CHECK_EQ(index[static_cast<size_t>(i)], 0);
    }
    if (kernel.op == ColumnOp::softmax) {
      run(filled([](int64_t, int64_t) { return 30000.0; }));
      const double eps = kernel.dtype == DType::bf16 ? 0x1p-8 : 0x1p-20;
      for (int64_t i = 0; i < rows * n; ++i) CHECK_LE(std::abs(y[i] * rows - 1), eps);
      run(filled([](int64_t r, int64_t i) { return r == 4 && i == 2 ? kNaN : 1.0; }));
      for (int64_t i = 0; i < rows * n; ++i) CHECK_EQ(std::isnan(y[i]), i % n == 2);
    }
  });
}
