// Holds one GEMM micro-kernel to its contract. Shared by the tests of the registry and of the
// emulated AMX.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/gemm_oracle.h"

namespace quern::test {

/// Operands of Σ A_i·B_i as large as the kernel's tile, and their sums in f64.
class TileCase {
 public:
  TileCase(const kernels::GemmKernel& kernel, int64_t k, int64_t batch)
      : kernel_(kernel),
        k_(k),
        batch_(batch),
        lda_(k + 3),
        sums_(static_cast<size_t>(most_rows(kernel) * kernel.nr)) {
    for (int64_t i = 0; i < batch; ++i) {
      Elements a(kernel.a, most_rows(kernel) * k), b(kernel.b, k * kernel.nr);
      a.fill_random(static_cast<uint32_t>(2 * i)), b.fill_random(static_cast<uint32_t>(2 * i + 1));
      for (int64_t row = 0; row < most_rows(kernel); ++row)
        for (int64_t column = 0; column < kernel.nr; ++column)
          for (int64_t p = 0; p < k; ++p)
            sum(row, column).add(a.get(row * k + p) * b.get(p * kernel.nr + column));
      a_.push_back(std::move(a)), b_.push_back(std::move(b));
    }
  }

  /// Runs the tile on m rows and n columns. What it may not read is NaN or not there, what it may
  /// not write is checked to be as it was.
  void check(int64_t m, int64_t n, bool accumulate) {
    if (k_ % kernel_.k_multiple == 0 && m <= kernel_.mr) check(m, n, accumulate, false);
    if (kernel_.run_outer && (m <= kernel_.mr || n <= kernel_.nr / 2))
      check(m, n, accumulate, true);
  }
  static int most_rows(const kernels::GemmKernel& kernel) {
    return std::max(kernel.mr, kernel.narrow_mr);
  }

 private:
  void check(int64_t m, int64_t n, bool accumulate, bool outer) {
    const int64_t ldc = n + 5;
    std::vector<Elements> a, b;
    std::vector<const void*> a_pointers, b_pointers;
    for (int64_t i = 0; i < batch_; ++i) {
      a.push_back(outer ? columns_of_a(i, m) : rows_of_a(i, m));
      b.push_back(outer ? rows_of_b(i, n) : panel_of_b(i, n));
      a_pointers.push_back(a.back().data()), b_pointers.push_back(b.back().data());
    }
    constexpr double kCanary = 12345, kBefore = 0.75;
    Elements c(kernel_.c, (m + 2) * ldc);
    c.fill(kCanary);
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < n; ++column)
        c.set((row + 1) * ldc + column,
              accumulate ? kBefore : std::numeric_limits<double>::quiet_NaN());

    (outer ? kernel_.run_outer : kernel_.run)({.m = m,
                                               .n = n,
                                               .k = k_,
                                               .batch = batch_,
                                               .a = a_pointers.data(),
                                               .lda = outer ? lda_of_columns(m) : lda_,
                                               .b = b_pointers.data(),
                                               .ldb = kernel_.nr + 1,
                                               .c = c.at(ldc),
                                               .ldc = ldc,
                                               .accumulate = accumulate});

    int64_t wrong = 0, overwritten = 0;
    for (int64_t row = -1; row <= m; ++row) {
      for (int64_t column = 0; column < ldc; ++column) {
        const double got = c.get((row + 1) * ldc + column);
        if (row < 0 || row == m || column >= n) {
          overwritten += got != kCanary;
          continue;
        }
        Sum expected = sum(row, column);
        if (accumulate) expected.add(kBefore);
        const double bound = expected.bound(kernel_.c, k_ * batch_ + 1);
        wrong += !(std::fabs(got - expected.value) <= bound);
      }
    }
    INFO(std::string(kernel_.name), " m ", m, " n ", n, " k ", k_, " batch ", batch_,
         accumulate ? " accumulate" : "", outer ? " outer" : "");
    CHECK(wrong == 0);
    CHECK(overwritten == 0);
  }

  Sum& sum(int64_t row, int64_t column) {
    return sums_[static_cast<size_t>(row * kernel_.nr + column)];
  }

  Elements rows_of_a(int64_t i, int64_t m) const {
    Elements rows(kernel_.a, (m - 1) * lda_ + k_);
    rows.fill(std::numeric_limits<double>::quiet_NaN());
    for (int64_t row = 0; row < m; ++row)
      for (int64_t p = 0; p < k_; ++p)
        rows.set(row * lda_ + p, a_[static_cast<size_t>(i)].get(row * k_ + p));
    return rows;
  }
  int64_t lda_of_columns(int64_t m) const { return m * kernel_.kr + 3; }
  Elements columns_of_a(int64_t i, int64_t m) const {
    const int64_t lda = lda_of_columns(m), kr = kernel_.kr, groups = (k_ + kr - 1) / kr;
    Elements columns(kernel_.a, (groups - 1) * lda + m * kr);
    columns.fill(std::numeric_limits<double>::quiet_NaN());
    for (int64_t row = 0; row < m; ++row)
      for (int64_t p = 0; p < groups * kr; ++p)
        columns.set(p / kr * lda + row * kr + p % kr,
                    p < k_ ? a_[static_cast<size_t>(i)].get(row * k_ + p) : 1);
    return columns;
  }
  Elements rows_of_b(int64_t i, int64_t n) const {
    const int64_t ldb = kernel_.nr + 1;
    Elements rows(kernel_.b, (k_ - 1) * ldb + kernel_.nr);
    rows.fill(std::numeric_limits<double>::quiet_NaN());
    for (int64_t p = 0; p < k_; ++p)
      for (int64_t column = 0; column < n; ++column)
        rows.set(p * ldb + column, b_[static_cast<size_t>(i)].get(p * kernel_.nr + column));
    return rows;
  }
  Elements panel_of_b(int64_t i, int64_t n) const {
    Elements panel(kernel_.b, k_ * kernel_.nr);
    panel.fill(0);
    for (int64_t p = 0; p < k_; ++p)
      for (int64_t column = 0; column < n; ++column)
        panel.set(p / kernel_.kr * kernel_.nr * kernel_.kr + column * kernel_.kr + p % kernel_.kr,
                  b_[static_cast<size_t>(i)].get(p * kernel_.nr + column));
    return panel;
  }

  const kernels::GemmKernel& kernel_;
  int64_t k_, batch_, lda_;
  std::vector<Elements> a_, b_;  // [mr][k] and [k][nr] of each product
  std::vector<Sum> sums_;
};

/// Every m and n once; edges of the tile at every k and batch; both ways of writing C.
inline void check_tile(const kernels::GemmKernel& kernel) {
  REQUIRE(kernel.k_multiple % kernel.kr == 0);
  const auto edges = [](int size) {
    return std::set<int64_t>{1, size / 2, size / 2 + 1, size - 1, size};
  };
  for (int64_t batch = 1; batch <= 3; ++batch) {
    for (int64_t steps : {1, 2, 3, 5}) {
      TileCase tile(kernel, steps * kernel.k_multiple, batch);
      for (int64_t m : edges(kernel.mr))
        for (int64_t n : edges(kernel.nr))
          for (bool accumulate : {false, true}) tile.check(m, n, accumulate);
    }
  }
  if (kernel.run_outer) {
    for (int64_t k : {1, 3, 7}) {
      TileCase tile(kernel, k, 2);
      for (int64_t m : edges(TileCase::most_rows(kernel)))
        for (int64_t n : edges(kernel.nr)) tile.check(m, n, n % 2 == 0);
    }
  }
  // A k longer than any block that a kernel converts at a time.
  TileCase tile(kernel, 288, 1);
  for (int64_t m = 1; m <= TileCase::most_rows(kernel); ++m)
    for (int64_t n = 1; n <= kernel.nr; ++n) tile.check(m, n, (m + n) % 2 == 0);
}

}  // namespace quern::test
