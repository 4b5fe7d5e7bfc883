// Every GEMM micro-kernel of the registry against its contract; dispatch; packing.
#include "quern/ops/kernels/gemm/gemm.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"

#include <doctest/doctest.h>

#include <string_view>

#include "built_isa.h"
#include "kernels/gemm_oracle.h"
#include "kernels/gemm_tile_check.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::kernels;
using quern::test::Elements;

TEST_CASE("gemm kernels keep to their contract") {
  for (const GemmKernel* kernel : table<GemmKernel>()) {
    if (!isa_enabled(kernel->isa)) {
      MESSAGE("skipped: " << std::string(kernel->name) << ", " << why_disabled(kernel->isa));
      continue;
    }
    test::check_tile(*kernel);
  }
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
  const Isa before = isa_cap();
  struct Expected {
    Isa cap;
    DType dtype;
    std::string_view kernel;
  };
  const Expected cases[] = {
      {Isa::portable, DType::f32, "gemm_f32_f32_f32_4x8_portable"},
      {Isa::portable, DType::bf16, "gemm_bf16_bf16_f32_4x8_portable"},
      {isa_cap(), DType::f64, "gemm_f64_f64_f64_4x4_portable"},
      {Isa::avx2, DType::f32, "gemm_f32_f32_f32_6x16_avx2"},
      {Isa::avx2, DType::bf16, "gemm_bf16_bf16_f32_6x16k2_avx2"},
      {Isa::avx512, DType::f32, "gemm_f32_f32_f32_14x32_avx512"},
      {Isa::avx512, DType::bf16, "gemm_bf16_bf16_f32_14x32k2_avx512"},
      {Isa::amx, DType::bf16, "gemm_bf16_bf16_f32_32x32k2_amx"},
      {Isa::neon, DType::f32, "gemm_f32_f32_f32_8x12_neon"},
      {Isa::neon, DType::bf16, "gemm_bf16_bf16_f32_8x12k2_neon"},
      {Isa::neon_bf16, DType::f32, "gemm_f32_f32_f32_8x12_neon"},
      {Isa::neon_bf16, DType::bf16, "gemm_bf16_bf16_f32_4x24k4_neon_bf16"},
      {Isa::sve, DType::f32, "gemm_f32_f32_f32_8x3vl_sve"},
      {Isa::sve_bf16, DType::f32, "gemm_f32_f32_f32_8x3vl_sve"},
      {Isa::sve_bf16, DType::bf16, "gemm_bf16_bf16_f32_4x6vlk4_sve_bf16"},
  };
  for (const Expected& expected : cases) {
    const bool any_cpu = expected.kernel.ends_with("_portable");
    if (!any_cpu && !test::is_built(expected.cap)) {
      MESSAGE("skipped: choice of " << expected.kernel << ", CPU has no "
                                    << to_string(expected.cap));
      continue;
    }
    set_isa_cap(expected.cap);
    CHECK(select_gemm_kernel(expected.dtype).name == expected.kernel);
  }
#ifdef __x86_64__
  if (test::is_built(Isa::avx512_bf16)) {  // which of two depends on the CPU
    set_isa_cap(Isa::avx512_bf16);
    CHECK(std::string(select_gemm_kernel(DType::bf16).name) ==
          (__builtin_cpu_is("amd") ? "gemm_bf16_bf16_f32_14x32k2_avx512_bf16"
                                   : "gemm_bf16_bf16_f32_14x32k2_avx512"));
  }
#endif
  set_isa_cap(before);
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
