// Products without packing against f64: every record, every shape and layout that they take.
#include <doctest/doctest.h>

#include <span>
#include <vector>

#include "gemm_oracle.h"
#include "quern/ops/kernels/gemm/direct.h"
#include "quern/ops/kernels/table.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

struct Sizes {
  int64_t m, n, k, batch = 1;
  bool a_by_columns = false, b_by_columns = false;
};
struct Options {
  bool bias = false, accumulate = false, to_bf16 = false;
  int64_t padding = 0;  // of the rows of C
};

constexpr double kBefore = 0.375;

class Product {
 public:
  Product(const DirectKernel& kernel, const Sizes& s)
      : kernel_(kernel),
        shape_(s),
        a_(kernel.dtype, s.batch * s.m * s.k),
        b_(kernel.dtype, s.batch * s.k * s.n),
        bias_(DType::f32, s.n),
        c_(DType::f32, 0) {
    a_.fill_random(1), b_.fill_random(2), bias_.fill_random(3);
    problem_.m = s.m, problem_.n = s.n, problem_.k = s.k, problem_.batch = s.batch;
    problem_.a = {a_.data(), s.a_by_columns ? 1 : s.k, s.a_by_columns ? s.m : 1, s.m * s.k};
    problem_.b = {b_.data(), s.b_by_columns ? 1 : s.n, s.b_by_columns ? s.k : 1, s.k * s.n};
    set({});
  }

  void set(const Options& o) {
    options_ = o;
    c_ = Elements(o.to_bf16 ? DType::bf16 : DType::f32,
                  shape_.batch * shape_.m * (shape_.n + o.padding));
    problem_.c = c_.data(), problem_.c_dtype = o.to_bf16 ? DType::bf16 : DType::f32;
    problem_.c_row_stride = shape_.n + o.padding;
    problem_.c_batch_stride = shape_.m * problem_.c_row_stride;
    problem_.bias = o.bias ? bias_.data() : nullptr;
    problem_.accumulate = o.accumulate;
  }

  bool taken() const { return select_direct_kernel(problem_, kernel_.dtype) != nullptr; }

  const Elements& run() {
    c_.fill(options_.accumulate ? kBefore : std::nan(""));
    for_each([&](int64_t, int64_t, int64_t j, int64_t at) {
      if (j >= shape_.n) c_.set(at, kBefore);
    });
    direct_product(kernel_, problem_);
    return c_;
  }

  void check() {
    INFO(std::string(kernel_.name), " m ", shape_.m, " n ", shape_.n, " k ", shape_.k, " batch ",
         shape_.batch, " columns ", shape_.a_by_columns, shape_.b_by_columns);
    REQUIRE(taken());
    run();
    if (sums_.empty()) add_up();
    int64_t wrong = 0, overwritten = 0;
    for_each([&](int64_t l, int64_t i, int64_t j, int64_t at) {
      if (j >= shape_.n) {
        overwritten += c_.get(at) != kBefore;
        return;
      }
      Sum sum = sums_[static_cast<size_t>((l * shape_.m + i) * shape_.n + j)];
      if (options_.bias) sum.add(bias_.get(j));
      if (options_.accumulate) sum.add(kBefore);
      double bound = sum.bound(DType::f32, shape_.k + 2);
      if (options_.to_bf16) bound += unit_roundoff(DType::bf16) * (std::fabs(sum.value) + bound);
      wrong += !(std::fabs(c_.get(at) - sum.value) <= bound);
    });
    CHECK(wrong == 0);
    CHECK(overwritten == 0);
  }

 private:
  template <class F>
  void for_each(F f) const {
    const int64_t ld = problem_.c_row_stride;
    for (int64_t l = 0; l < shape_.batch; ++l)
      for (int64_t i = 0; i < shape_.m; ++i)
        for (int64_t j = 0; j < ld; ++j) f(l, i, j, (l * shape_.m + i) * ld + j);
  }

  void add_up() {
    const std::vector<double> a_values = a_.values(), b_values = b_.values();
    const GemmOperand &a = problem_.a, &b = problem_.b;
    for (int64_t l = 0; l < shape_.batch; ++l)
      for (int64_t i = 0; i < shape_.m; ++i)
        for (int64_t j = 0; j < shape_.n; ++j) {
          Sum& sum = sums_.emplace_back();
          const double* row = &a_values[static_cast<size_t>(l * a.batch_stride + i * a.row_stride)];
          const double* column =
              &b_values[static_cast<size_t>(l * b.batch_stride + j * b.col_stride)];
          for (int64_t p = 0; p < shape_.k; ++p)
            sum.add(row[p * a.col_stride] * column[p * b.row_stride]);
        }
  }

  const DirectKernel& kernel_;
  Sizes shape_;
  Options options_;
  Elements a_, b_, bias_, c_;
  std::vector<Sum> sums_;  // of products
  GemmProblem problem_{};
};

template <class F>
void for_each_kernel(F f) {
  for (const DirectKernel* kernel : table<DirectKernel>())
    if (isa_enabled(kernel->isa)) f(*kernel);
}

const Sizes kVectors[] = {
    {1, 1, 1},
    {7, 1, 19},
    {33, 1, 64},
    {1, 5, 70, 1, false, true},
    {300, 1, 515},
    {1, 1, 200'000},  // a sum in parts
    {70, 1, 33, 1, true},
    {1100, 1, 300, 1, true},  // columns of A
    {1, 70, 33},
    {1, 2100, 70},
    {1, 66, 9000},
    {5, 1, 40, 3},
    {1, 40, 5, 3},
};
const Sizes kFewRows[] = {{2, 17, 3},     {3, 100, 40, 1, true},
                          {8, 1030, 129}, {5, 64, 5000, 1, true},
                          {16, 16, 4099}, {13, 9, 600, 1, true}};
const Sizes kFewColumns[] = {{70, 8, 300, 1, false, true},
                             {33, 3, 2100, 1, false, true},
                             {5, 700, 257, 1, false, true},  // few rows
                             {7, 6, 30'000, 1, false, true},
                             {19, 7, 256, 3, false, true},
                             {19, 7, 2000, 3, false, true},
                             {70, 8, 300},  // B is copied
                             {110, 8, 5000},
                             {16, 3, 256}};
const Sizes kBatches[] = {{4, 4, 4, 40},
                          {16, 16, 16, 9},
                          {31, 29, 32, 5, true},
                          {64, 32, 7, 4},
                          {31, 29, 32, 5, false, true},
                          {33, 20, 17, 6, true, true}};
const Sizes kOfFewSteps[] = {{40, 1100, 1}, {19, 2100, 2, 1, true}, {17, 1025, 8},
                             {9, 4, 7},     {70, 33, 5, 3, true},   {1100, 16, 3}};
const Sizes kInF32[] = {{64, 64, 64, 3},
                        {128, 63, 40, 2, false, true},
                        {33, 50, 50, 2, true},
                        {40, 1100, 16},
                        {300, 17, 13, 1, true}};

}  // namespace

TEST_CASE("products with vectors, of few rows or steps and of small batches are within bounds") {
  for_each_kernel([](const DirectKernel& kernel) {
    for (const auto& shapes :
         {std::span<const Sizes>(kVectors), std::span<const Sizes>(kFewRows),
          std::span<const Sizes>(kFewColumns), std::span<const Sizes>(kBatches),
          std::span<const Sizes>(kOfFewSteps)})
      for (const Sizes& shape : shapes) Product(kernel, shape).check();
    if (kernel.dtype == DType::f32)
      for (const Sizes& shape : kInF32) Product(kernel, shape).check();
  });
}

TEST_CASE("they add a bias, accumulate, round to bf16 once, and leave what is between rows of C") {
  for_each_kernel([](const DirectKernel& kernel) {
    for (const Sizes& shape :
         {Sizes{9, 1, 40}, Sizes{1, 300, 70}, Sizes{40, 1, 70, 1, true}, Sizes{8, 40, 9000},
          Sizes{7, 19, 5, 9, false, true}, Sizes{300, 70, 1}, Sizes{17, 1030, 3, 2, true},
          Sizes{70, 5, 300, 1, false, true}, Sizes{6, 90, 300, 2, false, true},
          Sizes{3, 4, 30'000, 1, false, true}, Sizes{4, 9, 30'000, 1, false, true},
          Sizes{40, 8, 2100}}) {
      Product product(kernel, shape);
      for (bool bias : {false, true})
        for (bool accumulate : {false, true})
          for (bool to_bf16 : {false, true})
            for (int64_t padding : {0, 3}) {
              product.set({bias, accumulate, to_bf16, padding});
              product.check();
            }
    }
  });
}

TEST_CASE("they give the same bits for any number of threads") {
  const Threads kept;
  for_each_kernel([](const DirectKernel& kernel) {
    for (const Sizes& shape : {Sizes{300, 1, 515}, Sizes{1, 1, 200'000}, Sizes{1, 2100, 700},
                               Sizes{8, 1030, 500}, Sizes{31, 29, 32, 50, false, true},
                               Sizes{40, 2100, 2}, Sizes{6, 900, 300, 1, false, true},
                               Sizes{3, 4, 30'000, 1, false, true}, Sizes{210, 8, 2100}}) {
      Product product(kernel, shape);
      set_num_threads(1);
      const Elements& c = product.run();
      std::vector<double> one;
      for (int64_t i = 0; i < c.count(); ++i) one.push_back(c.get(i));
      for (int threads : {2, 3}) {
        set_num_threads(threads);
        product.run();
        int64_t different = 0;
        for (int64_t i = 0; i < c.count(); ++i)
          different += c.get(i) != one[static_cast<size_t>(i)];
        CHECK(different == 0);
      }
    }
  });
}

TEST_CASE("what they do not take is left to gemm") {
  for_each_kernel([](const DirectKernel& kernel) {
    for (const Sizes& shape :
         {Sizes{129, 64, 64}, Sizes{65, 65, 17}, Sizes{9, 17, 65}, Sizes{2, 40, 40, 1, false, true},
          Sizes{20, 8, 256, 1, true}, Sizes{0, 1, 4}, Sizes{4, 1, 0}})
      CHECK_FALSE(Product(kernel, shape).taken());
    for (const Sizes& shape : {Sizes{64, 64, 64}, Sizes{9, 17, 40}, Sizes{70, 40, 9}})
      CHECK(Product(kernel, shape).taken() == (kernel.dtype == DType::f32));
  });
  GemmProblem problem{};
  problem.m = problem.k = 4, problem.n = 1, problem.batch = 1;
  problem.a = {nullptr, 4, 1}, problem.b = {nullptr, 1, 1};
  problem.bf16_terms = 1;
  CHECK(select_direct_kernel(problem, DType::bf16) == nullptr);
  problem.bf16_terms = 0;
  CHECK(select_direct_kernel(problem, DType::f64) == nullptr);
  CHECK(select_direct_kernel(problem, DType::f32) != nullptr);
}
