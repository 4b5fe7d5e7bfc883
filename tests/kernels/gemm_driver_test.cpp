// gemm(): blocking, packing, strides, batches, bias and rounding, with every kernel.
#include "quern/ops/kernels/gemm/gemm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "emulated_cpu.h"
#include "kernels/amx_emulation.h"
#include "kernels/gemm_oracle.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/cpu_features.h"
#include "quern/tensor/parallel.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;
using quern::test::Sum;
using quern::test::unit_roundoff;

namespace {

struct Layout {
  bool a_by_columns, b_by_columns;
  int64_t padding;           // between rows (columns where they lie so)
  int64_t overlapping = -1;  // not negative: these are so far apart instead, be they longer
};

struct Options {
  int64_t batch = 1;
  bool shared_b = false, packed_b = false, bias = false, accumulate = false, to_bf16 = false;
  int bf16_terms = 0;
};

/// A problem with operands of its own, and its product in f64.
class Case {
 public:
  Case(const GemmKernel& kernel, int64_t m, int64_t n, int64_t k, Layout layout,
       Options options = {})
      : kernel_(kernel),
        options_(options),
        k_(k),
        c_dtype_(options.to_bf16 ? DType::bf16 : kernel.c),
        a_(kernel.a, 0),
        b_(kernel.b, 0),
        bias_(kernel.c, n),
        c_(c_dtype_, 0) {
    const auto operand = [&](int64_t rows, int64_t columns, bool by_columns, int64_t batch) {
      const int64_t ld = layout.overlapping >= 0 ? layout.overlapping
                                                 : (by_columns ? rows : columns) + layout.padding;
      const int64_t size = ld * (by_columns ? columns : rows);
      return GemmOperand{nullptr, by_columns ? 1 : ld, by_columns ? ld : 1, batch > 1 ? size : 0};
    };
    const auto storage = [](DType dtype, const GemmOperand& o, int64_t rows, int64_t columns,
                            int64_t batch) {
      Elements e(dtype, rows * columns == 0
                            ? 0
                            : (batch - 1) * o.batch_stride + (rows - 1) * o.row_stride +
                                  (columns - 1) * o.col_stride + 1);
      return e;
    };
    const int64_t b_batch = options.shared_b ? 1 : options.batch;
    problem_.m = m, problem_.n = n, problem_.k = k, problem_.batch = options.batch;
    problem_.a = operand(m, k, layout.a_by_columns, options.batch);
    problem_.b = operand(k, n, layout.b_by_columns, b_batch);
    const DType dtype = options.bf16_terms == 0 ? kernel.a : DType::f32;
    a_ = storage(dtype, problem_.a, m, k, options.batch);
    b_ = storage(dtype, problem_.b, k, n, b_batch);
    a_.fill_random(1), b_.fill_random(2), bias_.fill_random(3);
    a_values_ = a_.values(), b_values_ = b_.values();
    problem_.a.data = a_.data(), problem_.b.data = b_.data();

    problem_.c_row_stride = n + layout.padding;
    problem_.c_batch_stride = m * problem_.c_row_stride + 1;
    c_ = Elements(c_dtype_, options.batch * problem_.c_batch_stride);
    problem_.c_dtype = c_dtype_;
    if (options.bias) problem_.bias = bias_.data();
    problem_.accumulate = options.accumulate;
    problem_.bf16_terms = options.bf16_terms;
    if (options.packed_b) {
      panels_ = std::make_unique<std::byte[]>(
          static_cast<size_t>(packed_b_bytes(kernel, k, n, options.bf16_terms)));
      pack_gemm_b(kernel, problem_.b, k, n, panels_.get(), options.bf16_terms);
      problem_.packed_b = panels_.get();
      problem_.b.data = nullptr;
    }
  }

  const Elements& run() {
    c_.fill(kBefore);
    if (!options_.accumulate)
      for_each([&](int64_t, int64_t, int64_t, int64_t at) { c_.set(at, std::nan("")); });
    problem_.c = c_.data();
    gemm(kernel_, problem_);
    return c_;
  }

  void check() {
    run();
    int64_t wrong = 0;
    std::vector<bool> written(static_cast<size_t>(c_.count()));
    for_each([&](int64_t l, int64_t i, int64_t j, int64_t at) {
      const Sum sum = expected(l, i, j);
      // bf16 is rounded once more, from a value that is off by the bound already.
      double bound = bound_of(sum);
      if (c_dtype_ == DType::bf16)
        bound += unit_roundoff(DType::bf16) * (std::fabs(sum.value) + bound);
      wrong += !(std::fabs(c_.get(at) - sum.value) <= bound);
      written[static_cast<size_t>(at)] = true;
    });
    int64_t overwritten = 0;
    for (int64_t at = 0; at < c_.count(); ++at)
      overwritten += !written[static_cast<size_t>(at)] && c_.get(at) != kBefore;
    INFO(std::string(kernel_.name), " m ", problem_.m, " n ", problem_.n, " k ", k_, " batch ",
         options_.batch);
    CHECK(wrong == 0);
    CHECK(overwritten == 0);
  }

 private:
  /// With u = 2^-8 the roundoff of bf16, hi is off by u|x|, and hi + lo by u²|x|. One term: a
  /// product is off by 2u + u². Two: what is left out is lo·lo, at most (u + u²)², and what a and b
  /// lack, u²(1 + u) each; three products, of magnitudes (1 + u)(1 + 3u) together, are summed.
  double bound_of(const Sum& sum) const {
    const double u = unit_roundoff(DType::bf16);
    if (options_.bf16_terms == 0) return sum.bound(kernel_.c, k_ + 2);
    if (options_.bf16_terms == 1)
      return (2 * u + u * u) * sum.magnitude + (1 + u) * (1 + u) * sum.bound(kernel_.c, k_ + 2);
    const double left_out = (u + u * u) * (u + u * u) + 2 * u * u * (1 + u) + u * u * u * u;
    return left_out * sum.magnitude + (1 + u) * (1 + 3 * u) * sum.bound(kernel_.c, 3 * k_ + 2);
  }

  static constexpr double kBefore = 0.375;

  template <class F>
  void for_each(F&& f) const {
    for (int64_t l = 0; l < problem_.batch; ++l)
      for (int64_t i = 0; i < problem_.m; ++i)
        for (int64_t j = 0; j < problem_.n; ++j)
          f(l, i, j, l * problem_.c_batch_stride + i * problem_.c_row_stride + j);
  }

  Sum expected(int64_t l, int64_t i, int64_t j) const {
    const GemmOperand &a = problem_.a, &b = problem_.b;
    Sum sum;
    for (int64_t p = 0; p < k_; ++p)
      sum.add(
          a_values_[static_cast<size_t>(l * a.batch_stride + i * a.row_stride + p * a.col_stride)] *
          b_values_[static_cast<size_t>(l * b.batch_stride + p * b.row_stride + j * b.col_stride)]);
    if (options_.bias) sum.add(bias_.get(j));
    if (options_.accumulate) sum.add(kBefore);
    return sum;
  }

  const GemmKernel& kernel_;
  Options options_;
  int64_t k_;
  DType c_dtype_;
  Elements a_, b_, bias_, c_;
  std::vector<double> a_values_, b_values_;
  std::unique_ptr<std::byte[]> panels_;
  GemmProblem problem_{};
};

template <class F>
void for_each_kernel(F&& f) {
  int ran = 0;
  for (const GemmKernel* kernel : table<GemmKernel>())
    if (isa_enabled(kernel->isa)) ++ran, f(*kernel);
  CHECK(ran > 0);
  if (!test::kEmulatedCpu) f(test::kEmulatedAmx);
}

constexpr Layout kPlain{false, false, 0};

}  // namespace

TEST_CASE("gemm multiplies matrices of awkward shapes and strides") {
  const Layout layouts[] = {kPlain, {true, false, 3}, {false, true, 2}, {true, true, 1}};
  for_each_kernel([&](const GemmKernel& kernel) {
    const int64_t mr = kernel.mr, nr = kernel.nr;
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                           {1, nr + 1, 7},
                           {mr, nr, 32},
                           {mr + 1, 2 * nr, 33},
                           {2 * mr + 1, nr - 1, 64},
                           {5, 3, 531},
                           {2, 70, 257}})
      for (const Layout& layout : layouts) Case(kernel, m, n, k, layout).check();
  });
}

TEST_CASE("gemm multiplies matrices whose rows, or columns, overlap or are one") {
  for_each_kernel([](const GemmKernel& kernel) {
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                           {2, kernel.nr, 64},
                           {kernel.mr + 1, 2 * kernel.nr + 3, 70}})
      for (int64_t apart : {0, 1, 3})
        for (bool a_by_columns : {false, true})
          for (bool b_by_columns : {false, true}) {
            const Layout layout{a_by_columns, b_by_columns, 0, apart};
            Case(kernel, m, n, k, layout, {.batch = 2}).check();
            if (kernel.a == DType::bf16)
              for (int terms : {1, 2}) Case(kernel, m, n, k, layout, {.bf16_terms = terms}).check();
          }
  });
}

TEST_CASE("gemm works through several blocks of m, n and k") {
  for_each_kernel([](const GemmKernel& kernel) { Case(kernel, 259, 301, 19, kPlain).check(); });
  // 4 KiB rows of f32, 2 KiB of bf16: A is packed although it could be used in place.
  for_each_kernel([](const GemmKernel& kernel) {
    if (kernel.isa == max_isa()) Case(kernel, 9, 17, 1024, kPlain, {.bias = true}).check();
  });
}

TEST_CASE(
    "gemm packs a B of many panels by rows and by columns, where words of a column fit and not") {
  for_each_kernel([](const GemmKernel& kernel) {
    const int64_t n = 17 * kernel.nr + 5;
    for (const Layout& layout : {kPlain, {false, false, 3}, {false, true, 0}, {false, true, 1}}) {
      Case(kernel, 3, n, 520, layout).check();
      if (kernel.a == DType::bf16) Case(kernel, 3, n, 520, layout, {.bf16_terms = 2}).check();
    }
  });
}

TEST_CASE("gemm packs a B of more than 8 MiB a block of k at a time") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const GemmKernel& kernel = select_gemm_kernel(dtype);
    const int64_t k = 4100, n = (int64_t{8} << 20) / (k * itemsize(dtype)) + 1;
    Case(kernel, 2, n, k, kPlain).check();
    Case(kernel, 2, n, k, {true, true, 1}, {.accumulate = true}).check();
    if (dtype == DType::bf16) Case(kernel, 2, n / 2 + 1, k, kPlain, {.bf16_terms = 2}).check();
  }
}

TEST_CASE("gemm adds a bias, accumulates, and rounds to bf16 once") {
  for_each_kernel([](const GemmKernel& kernel) {
    for (bool bias : {false, true})
      for (bool accumulate : {false, true})
        for (bool to_bf16 : {false, kernel.c == DType::f32})
          for (int64_t k : {20, 700})
            Case(kernel, 18, 35, k, {false, true, 1},
                 {.bias = bias, .accumulate = accumulate, .to_bf16 = to_bf16})
                .check();
  });
}

TEST_CASE("gemm runs batches, with a B of each or one for all, packed now or before") {
  for_each_kernel([](const GemmKernel& kernel) {
    Case(kernel, 7, 19, 33, {true, false, 1}, {.batch = 5}).check();
    Case(kernel, 7, 19, 33, {false, true, 1}, {.batch = 5, .shared_b = true}).check();
    Case(kernel, 7, 79, 1030, {false, true, 1}, {.batch = 2, .shared_b = true, .packed_b = true})
        .check();
  });
}

TEST_CASE("gemm multiplies f32 as one or as three products of bf16") {
  int ran = 0;
  for_each_kernel([&](const GemmKernel& kernel) {
    if (kernel.a != DType::bf16) return;
    ++ran;
    for (int terms : {1, 2}) {
      for (const Layout& layout : {kPlain, {true, false, 3}, {false, true, 2}, {true, true, 1}})
        for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {kernel.mr + 1, kernel.nr + 3, 33}})
          Case(kernel, m, n, k, layout, {.bf16_terms = terms}).check();
      // Several blocks of k, and what else a product may have.
      Case(kernel, 5, 35, 2100, {false, true, 1},
           {.batch = 2, .bias = true, .accumulate = true, .bf16_terms = terms})
          .check();
      Case(kernel, 7, 79, 600, kPlain,
           {.batch = 2, .shared_b = true, .packed_b = true, .to_bf16 = true, .bf16_terms = terms})
          .check();
      Case(kernel, 3, 5, 0, kPlain, {.bf16_terms = terms}).check();
    }
  });
  CHECK(ran > 0);
}

TEST_CASE("gemm of an empty sum is zero, and of an empty matrix nothing") {
  for_each_kernel([](const GemmKernel& kernel) {
    Case(kernel, 3, 5, 0, kPlain).check();
    Case(kernel, 3, 5, 0, kPlain, {.batch = 2, .bias = true, .accumulate = true}).check();
    Case(kernel, 0, 5, 4, kPlain).check();
    Case(kernel, 3, 0, 4, kPlain).check();
  });
}

TEST_CASE("gemm gives the same bits for any number of threads") {
  const test::Threads kept;
  for_each_kernel([](const GemmKernel& kernel) {
    Case problem(kernel, 150, 130, 70, {true, true, 1}, {.batch = 2, .bias = true});
    set_num_threads(1);
    std::vector<double> one;
    for (const Elements& c = problem.run(); one.size() < static_cast<size_t>(c.count());)
      one.push_back(c.get(static_cast<int64_t>(one.size())));
    for (int threads : {2, 3}) {
      set_num_threads(threads);
      const Elements& c = problem.run();
      int64_t different = 0;
      for (int64_t i = 0; i < c.count(); ++i) different += c.get(i) != one[static_cast<size_t>(i)];
      CHECK(different == 0);
    }
  });
}
