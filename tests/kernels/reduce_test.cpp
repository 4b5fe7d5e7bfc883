// Every row record against the f64 reference, over lengths around vectors and blocks.
#include "records.h"

#include <limits>
#include <random>

#include "quern/ops/kernels/reduce/row.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kSumRows = 5;

std::vector<int64_t> lengths() {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= 3 * 16 + 1; ++n) all.push_back(n);
  for (const int64_t n : {63, 64, 65, 1000, 4096, 4097, 9001}) all.push_back(n);
  return all;
}

std::vector<double> uniform(int64_t n, double low, double high, DType dtype, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) value = draw(engine);
  return Buffer(dtype, values).values();
}

/// A row's arguments in some dtype, and its results as f64.
struct Problem {
  Problem(RowOp op, DType dtype, int64_t n, DType held_in)
      : n(n),
        x(dtype, uniform(op == RowOp::sum_rows ? kSumRows * (n + 3) : n, -5,
                         op == RowOp::log_softmax_backward ? 0 : 5, held_in, 1)),
        dy(dtype, uniform(n, -1, 1, held_in, 2)),
        y(dtype, n),
        out(wide(dtype), std::vector<double>(static_cast<size_t>(std::max<int64_t>(n, 2)), 0)),
        weight(wide(dtype), uniform(n, 0.5, 2, DType::f32, 3)) {
    out.set(0, 5), out.set(1, std::log(static_cast<double>(n)));  // about log_sum_exp's
    if (op == RowOp::cross_entropy_backward) out.set(1, static_cast<float>(out[1]));
  }
  static DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

  void run(const RowKernel& kernel) {
    Row row{.n = n, .x = x.data(), .dy = dy.data(), .y = y.data(), .out = out.data()};
    row.index = &index, row.rows = kSumRows, row.stride = n + 3;
    row.weight = weight.data(), row.target = n / 2;
    row.a = 0.75, row.b = 0.125, row.c = 0.5;
    kernel.run(row);
  }

  int64_t n;
  Buffer x, dy, y, out, weight;
  int64_t index = -1;
};

/// Longest chain of additions in a vector sum of n: within a block over the narrowest vectors (4 of
/// 4 lanes), across accumulators and lanes, over blocks.
double depth(int64_t n) {
  return static_cast<double>(std::min<int64_t>(n, 4096) / 16 + 8 + n / 4096);
}

double sum_of_magnitudes(Buffer& values, int64_t n, int64_t stride = 1, int64_t first = 0) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::abs(values[first + i * stride]);
  return total;
}

/// What the bounds of all elements of a gradient have in common.
double size_of_sum(RowOp op, Problem& p) {
  double total = 0;
  if (op == RowOp::softmax_backward)
    for (int64_t k = 0; k < p.n; ++k) total += std::abs(p.x[k] * p.dy[k]);
  else if (op == RowOp::log_softmax_backward) total = sum_of_magnitudes(p.dy, p.n);
  return total;
}

/// Error of element i of the result in f32 roundoffs; exp and log are within 2 of them. x in
/// -5..5, so that x - shift is off by at most `range`, and with it the logarithm of exp(x - shift).
double bound(RowOp op, Problem& p, int64_t i, double expected, double size) {
  constexpr double range = 10;
  const double magnitude = std::abs(expected), log_n = std::log(static_cast<double>(p.n));
  const double sum_of_exps = depth(p.n) + 2 + range;  // relative
  switch (op) {
    case RowOp::sum: return depth(p.n) * sum_of_magnitudes(p.x, p.n) + magnitude;
    case RowOp::sum_rows: return kSumRows * sum_of_magnitudes(p.x, kSumRows, p.n + 3, i);
    case RowOp::max: return 0;
    case RowOp::log_sum_exp: return i == 0 ? 0 : sum_of_exps + 2 * magnitude;
    case RowOp::softmax: return (2 + range + sum_of_exps + 2) * magnitude;
    case RowOp::log_softmax: return range + sum_of_exps + 2 * (range + log_n) + magnitude;
    case RowOp::softmax_backward: return std::abs(p.x[i]) * (depth(p.n) + 1) * size + 2 * magnitude;
    case RowOp::log_softmax_backward: return std::exp(p.x[i]) * (depth(p.n) + 3) * size + magnitude;
    case RowOp::cross_entropy_backward: {
      const double p_i = std::exp(p.x[i] - p.out[0] - p.out[1]);
      return 0.75 * p_i * (2 * range + log_n + 3) + 2 * 0.125 * p.weight[i] + 2 * magnitude + 0.5;
    }
  }
  return 0;
}

bool writes_out(RowOp op) { return op <= RowOp::max || op == RowOp::log_sum_exp; }
int64_t results(RowOp op, int64_t n) {
  return op == RowOp::sum || op == RowOp::max ? 1 : op == RowOp::log_sum_exp ? 2 : n;
}

const RowKernel& f64_reference(RowOp op) {
  for (const RowKernel* kernel : table<RowKernel>())
    if (kernel->op == op && kernel->dtype == DType::f64) return *kernel;
  throw Error("no f64 record");
}

}  // namespace

TEST_CASE("row kernels are within their bounds") {
  each_runnable(table<RowKernel>(), [](const RowKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    for (const int64_t n : lengths()) {
      CAPTURE(n);
      Problem got(kernel.op, kernel.dtype, n, kernel.dtype);
      Problem expected(kernel.op, DType::f64, n, kernel.dtype);
      got.run(kernel);
      expected.run(f64_reference(kernel.op));
      REQUIRE(got.y.guarded());
      REQUIRE(got.out.guarded());
      REQUIRE_EQ(got.index, expected.index);
      const bool out = writes_out(kernel.op);
      const double size = size_of_sum(kernel.op, expected);
      for (int64_t i = 0; i < results(kernel.op, n); ++i) {
        const double value = out ? got.out[i] : got.y[i];
        const double right = out ? expected.out[i] : expected.y[i];
        CAPTURE(i);
        CAPTURE(value);
        CAPTURE(right);
        // Statistics are in f32 for bf16 too.
        REQUIRE(close(value, right, bound(kernel.op, expected, i, right, size),
                      out ? DType::f32 : kernel.dtype));
      }
    }
  });
}

TEST_CASE("several rows at once are each as by itself") {
  const auto takes_several = [](const RowKernel& kernel) {
    return kernel.op != RowOp::sum_rows && kernel.op != RowOp::cross_entropy_backward;
  };
  each_runnable(table<RowKernel>(), takes_several, [](const RowKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const DType dtype = kernel.dtype, wide = Problem::wide(dtype);
    for (const int64_t n : {1, 7, 16, 77, 300, 2000}) {
      CAPTURE(n);
      for (const int64_t count : {std::min<int64_t>(2, rows_at_once(n)), rows_at_once(n)}) {
        Buffer x(dtype, uniform(count * n, -5, 0, dtype, 1));
        Buffer dy(dtype, uniform(count * n, -1, 1, dtype, 2));
        const int64_t outs = kernel.op == RowOp::log_sum_exp ? 2 : 1;
        Buffer y(dtype, count * n), out(wide, outs * count);
        Buffer index(DType::i64, count), index_alone(DType::i64, count);
        kernel.run({.n = n,
                    .count = count,
                    .x = x.data(),
                    .dy = dy.data(),
                    .y = y.data(),
                    .out = out.data(),
                    .index = static_cast<int64_t*>(index.data())});
        CHECK(y.guarded());
        CHECK(out.guarded());
        CHECK(index.guarded());
        Buffer y_alone(dtype, count * n), out_alone(wide, outs * count);
        for (int64_t r = 0; r < count; ++r)
          kernel.run({.n = n,
                      .x = x.at(r * n),
                      .dy = dy.at(r * n),
                      .y = y_alone.at(r * n),
                      .out = out_alone.at(r * outs),
                      .index = static_cast<int64_t*>(index_alone.at(r))});
        CHECK(index.values() == index_alone.values());
        CHECK(y.values() == y_alone.values());
        CHECK(out.values() == out_alone.values());
      }
    }
  });
}

TEST_CASE("max takes the first of equals and the first NaN") {
  const auto fits = [](const RowKernel& kernel) { return kernel.op == RowOp::max; };
  each_runnable(table<RowKernel>(), fits, [](const RowKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const auto run = [&](const std::vector<double>& values) {
      Buffer x(kernel.dtype, values), out(Problem::wide(kernel.dtype), 1);
      int64_t index = -1;
      kernel.run({.n = static_cast<int64_t>(values.size()),
                  .x = x.data(),
                  .out = out.data(),
                  .index = &index});
      return std::pair(out[0], index);
    };
    for (const int64_t n : {1, 3, 16, 37, 70})
      for (int64_t at = 0; at < n; ++at) {
        std::vector<double> x(static_cast<size_t>(n), -2);
        for (int64_t i = at; i < n; i += 3) x[static_cast<size_t>(i)] = 7;
        CHECK_EQ(run(x), std::pair(7.0, at));
        x.assign(static_cast<size_t>(n), kInf);
        for (int64_t i = at; i < n; i += 2) x[static_cast<size_t>(i)] = kNaN;
        const auto [value, index] = run(x);
        CHECK(std::isnan(value));
        CHECK_EQ(index, at);
      }
    CHECK_EQ(run(std::vector<double>(21, -kInf)), std::pair(-kInf, int64_t{0}));
  });
}

TEST_CASE("softmax and log_sum_exp do not overflow, and pass NaN on") {
  each_runnable(table<RowKernel>(), [](const RowKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const int64_t n = 19;
    Buffer huge(kernel.dtype, std::vector<double>(n, 30000)), y(kernel.dtype, n);
    Buffer bad(kernel.dtype, std::vector<double>(n, 1)), out(Problem::wide(kernel.dtype), 2);
    bad.set(n - 1, kNaN);
    Row row{.n = n, .x = huge.data(), .y = y.data(), .out = out.data()};
    const double eps = kernel.dtype == DType::bf16 ? 0x1p-8 : 0x1p-20;
    if (kernel.op == RowOp::softmax) {
      kernel.run(row);
      for (int64_t i = 0; i < n; ++i) CHECK_LE(std::abs(y[i] * n - 1), eps);
      row.x = bad.data();
      kernel.run(row);
      for (int64_t i = 0; i < n; ++i) CHECK(std::isnan(y[i]));
    }
    if (kernel.op == RowOp::log_sum_exp) {
      kernel.run(row);
      CHECK_EQ(out[0], huge[0]);
      CHECK_LE(std::abs(out[1] - std::log(19.0)), 0x1p-20);
    }
  });
}

TEST_CASE("cross_entropy_backward without weights or target") {
  const auto fits = [](const RowKernel& kernel) {
    return kernel.op == RowOp::cross_entropy_backward;
  };
  each_runnable(table<RowKernel>(), fits, [](const RowKernel& kernel) {
    CAPTURE(std::string(kernel.name));
    const int64_t n = 21;
    Buffer x(kernel.dtype, std::vector<double>(n, 2)), y(kernel.dtype, n);
    Buffer out(Problem::wide(kernel.dtype), std::vector<double>{2, 0});
    Row row{.n = n, .x = x.data(), .y = y.data(), .out = out.data()};  // p = 1
    row.a = 0.5, row.b = 0.25;
    kernel.run(row);
    for (int64_t i = 0; i < n; ++i) CHECK_EQ(y[i], 0.25);
    row.a = row.b = 0;
    kernel.run(row);
    for (int64_t i = 0; i < n; ++i) CHECK_EQ(y[i], 0);
  });
}

TEST_CASE("the cap of instruction sets chooses the record") {
  test::each_cap({Isa::portable, Isa::avx2, Isa::avx512}, table<RowKernel>(), [](Isa cap) {
    CHECK_EQ(select_row("test", RowOp::sum, DType::f32).name,
             fmt::format("sum_f32_{}", to_string(cap)));
  });
  CHECK_THROWS_WITH_AS(select_row("softmax", RowOp::softmax, DType::i64),
                       "[softmax] dtype: expected bf16, f32 or f64, got i64", Error);
}
