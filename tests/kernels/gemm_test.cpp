// Every GEMM micro-kernel of the registry against its contract; dispatch; packing.
#include "quern/ops/kernels/gemm/gemm.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"

#include <doctest/doctest.h>

#include <string_view>

#include "built_isa.h"
#include "kernels/best_gemm.h"
#include "kernels/gemm_oracle.h"
#include "kernels/gemm_tile_check.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;

TEST_CASE("gemm kernels keep to their contract") {
  int ran = 0;
  for (const GemmKernel* kernel : table<GemmKernel>()) {
    if (!isa_enabled(kernel->isa)) {
      MESSAGE("skipped: " << std::string(kernel->name) << ", " << why_disabled(kernel->isa));
      continue;
    }
    ++ran;
    test::check_tile(*kernel);
  }
  CHECK(ran > 0);
}

TEST_CASE("a gemm kernel's name says what its record says") {
  for (const GemmKernel* kernel : table<GemmKernel>()) {
    std::string_view isa = to_string(kernel->isa);
    if (std::string_view(kernel->name).ends_with("_reference")) isa = "reference";
    const std::string pairs = kernel->kr == 1 ? "" : fmt::format("k{}", kernel->kr);
    const std::string nr = kernel->scalable ? fmt::format("{}vl", kernel->nr * 32 / sve_bits())
                                            : fmt::format("{}", kernel->nr);
    CHECK(kernel->name == fmt::format("gemm_{}_{}_{}_{}x{}{}_{}", kernel->a, kernel->b, kernel->c,
                                      kernel->mr, nr, pairs, isa));
    if (cpu_has(kernel->isa)) CHECK(kernel->nr <= kMaxNr);
  }
}

TEST_CASE("gemm dispatch takes the best kernel under the cap") {
  test::each_cap(test::kGemmIsas, table<GemmKernel>(), [](Isa isa) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64})
      CHECK(select_gemm_kernel(dtype).name == test::best_gemm(isa, dtype));
  });
  CHECK_THROWS_WITH_AS(select_gemm_kernel(DType::i64),
                       "[gemm] dtype: expected bf16, f32 or f64, got i64", Error);
}

TEST_CASE("pack_gemm_b lays out panels as the contract draws them") {
  for (const GemmKernel* kernel : table<GemmKernel>()) {
    const int64_t nr = kernel->nr, kr = kernel->kr;
    for (int64_t k : {1, 2, 17, 64}) {
      for (int64_t n : {int64_t{1}, nr - 1, nr, nr + 1, 2 * nr + 3}) {
        for (auto [row_stride, col_stride] :
             {std::pair{n + 2, int64_t{1}}, {int64_t{1}, k + 2}, {2 * n, int64_t{2}}}) {
          Elements b(kernel->b, (k - 1) * row_stride + (n - 1) * col_stride + 1);
          b.fill_random(7);
          const int64_t panel = panel_elements(*kernel, k), count = panel_count(*kernel, n);
          Elements panels(kernel->b, panel * count + 1);
          panels.fill(9);
          pack_gemm_b(*kernel, {b.data(), row_stride, col_stride}, k, n, panels.data());
          int64_t wrong = 0;
          for (int64_t p = 0; p < padded_k(*kernel, k); ++p)
            for (int64_t j = 0; j < count * nr; ++j) {
              const double expected = p < k && j < n ? b.get(p * row_stride + j * col_stride) : 0;
              const int64_t at = j / nr * panel + p / kr * nr * kr + j % nr * kr + p % kr;
              wrong += panels.get(at) != expected;
            }
          INFO(std::string(kernel->name), " k ", k, " n ", n, " strides ", row_stride, " ",
               col_stride);
          CHECK(wrong == 0);
          CHECK(panels.get(panel * count) == 9);
        }
      }
    }
  }
}
