// QUERN_KERNEL, and kernels that are added.
#include "quern/ops/kernels/table.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <string>

#include "conv_cases.h"
#include "tensor/run_self.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

std::string chosen(std::string_view of_case, DType dtype) {
  const ConvProblem p = case_of(of_case).problem(dtype, MemoryFormat::channels_last);
  return choose_conv(p, ConvPass::forward).kernel->name;
}

}  // namespace

TEST_CASE("child: added" * doctest::skip()) {
  static constexpr ConvKernel kOdd{
      .name = "only_1x1",
      .why_not = [](const ConvProblem& p, ConvPass,
                    const GemmKernel&) { return p.kh == 1 ? nullptr : "it takes 1x1 filters"; },
      .plan = nullptr};
  add_kernel(kOdd);
  fmt::print("1x1: {}\n", chosen("1×1, odd", DType::f64));
  fmt::print("3x3: {}\n", chosen("3×3, odd", DType::f64));
  fmt::print("last: {}\n", table<ConvKernel>().back()->name);
  CHECK_THROWS_WITH_AS(add_kernel(kOdd),
                       "[dispatch] add_kernel: only_1x1 comes after the first use of its table",
                       Error);
}
TEST_CASE("child: gemm" * doctest::skip()) {
  fmt::print("f32: {}\n", select_gemm_kernel(DType::f32).name);
  fmt::print("f64: {}\n", select_gemm_kernel(DType::f64).name);
}

TEST_CASE("An added kernel comes last, and runs where it is asked for and takes the problem") {
  const std::string unasked = run_self("env -u QUERN_KERNEL", "child: added");
  CHECK(contains(unasked, "1x1: brgemm\n3x3: brgemm\nlast: only_1x1\n"));
  CHECK(contains(unasked, "SUCCESS"));
  const std::string asked =
      run_self("QUERN_KERNEL=only_1x1 QUERN_VERBOSE=dispatch", "child: added");
  CHECK(contains(asked, "1x1: only_1x1\n"));
  CHECK(contains(asked, "3x3: brgemm\nlast: reference\n"));
  CHECK(contains(asked, "only_1x1,refused: it takes 1x1 filters\n"));
}

TEST_CASE("QUERN_KERNEL names a kernel of any kind; others keep theirs") {
  const std::string asked = "gemm_f32_f32_f32_8x16_reference";
  const std::string output = run_self("QUERN_KERNEL=" + asked, "child: gemm");
  CHECK(contains(output, "f32: " + asked + "\n"));
  CHECK(
      contains(output, fmt::format("f64: {}\n", std::string(select_gemm_kernel(DType::f64).name))));
}

TEST_CASE("QUERN_KERNEL of an unknown name is an error that lists the names") {
  const std::string output = run_self("QUERN_KERNEL=gemm_fast", "child: gemm");
  CHECK(contains(output,
                 "[dispatch] QUERN_KERNEL: expected a kernel, got \"gemm_fast\"; there are "));
  CHECK(contains(output, ", gemm_f64_f64_f64_8x8_reference, "));
  CHECK(contains(output, ", brgemm, reference, "));
}
