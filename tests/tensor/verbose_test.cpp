#include "quern/tensor/verbose.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "quern/tensor/check.h"
#include "run_self.h"

using namespace quern;
using test::contains, test::run_self;

TEST_CASE("child: verbose" * doctest::skip()) {
  VerboseOp line("conv2d_fwd");
  if (line) line.set("conv_f32_avx2", "16x64x56x56", "f32:channels_last");
  report_refusal("gemm", "gemm_bf16_bf16_f32_32x32k2_amx", "CPU has no amx");
  report_choice("gemm", "gemm_f32_f32_f32_6x16_avx2");
}

TEST_CASE("verbose: off unless asked for") {
  for (const char* environment : {"QUERN_VERBOSE=0", "QUERN_VERBOSE=", "env -u QUERN_VERBOSE"})
    CHECK_FALSE(contains(run_self(environment, "child: verbose"), "quern_verbose"));
}

TEST_CASE("verbose: 1 prints a line an op") {
  const std::string output = run_self("QUERN_VERBOSE=1", "child: verbose");
  const std::string start = "quern_verbose,conv2d_fwd,conv_f32_avx2,16x64x56x56,f32:channels_last,";
  const size_t at = output.find(start);
  REQUIRE(at != std::string::npos);
  char* end = nullptr;
  const double ms = std::strtod(output.c_str() + at + start.size(), &end);
  CHECK((ms >= 0 && ms < 10'000));
  CHECK(*end == '\n');
  CHECK_FALSE(contains(output, "dispatch"));
}

TEST_CASE("verbose: dispatch also prints choices and refusals") {
  const std::string output = run_self("QUERN_VERBOSE=dispatch", "child: verbose");
  CHECK(contains(output, "quern_verbose,conv2d_fwd,"));
  CHECK(contains(
      output,
      "quern_verbose,dispatch,gemm,gemm_bf16_bf16_f32_32x32k2_amx,refused: CPU has no amx\n"
      "quern_verbose,dispatch,gemm,gemm_f32_f32_f32_6x16_avx2,chosen\n"));
}

TEST_CASE("child: verbose where nothing can be written" * doctest::skip()) {
  REQUIRE(std::freopen("/dev/full", "w", stdout) != nullptr);
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // or only the end of the program would try
  for (const bool closed : {false, true}) {
    if (closed) ::close(STDOUT_FILENO);
    {
      VerboseOp line("conv2d_fwd");
      line.set("conv_f32_avx2", "16x64x56x56", "f32:channels_last");
    }
    report_refusal("gemm", "gemm_bf16_bf16_f32_32x32k2_amx", "CPU has no amx");
    report_choice("gemm", "gemm_f32_f32_f32_6x16_avx2");
    CHECK(std::ferror(stdout) != 0);
  }
  std::fputs("went on", stderr);
}

TEST_CASE("verbose: an op does not fail because its line cannot be written") {
  CHECK(run_self("QUERN_VERBOSE=dispatch", "child: verbose where nothing can be written")
            .ends_with("went on"));
}

TEST_CASE("verbose: any other word is an error") {
  CHECK(contains(run_self("QUERN_VERBOSE=loud", "child: verbose"),
                 "[verbose] QUERN_VERBOSE: expected 0, 1 or dispatch, got \"loud\""));
}

TEST_CASE("verbose: set_verbosity") {
  const Verbosity before = verbosity();
  set_verbosity(Verbosity::ops);
  CHECK(verbosity() == Verbosity::ops);
  set_verbosity(Verbosity::off);
  CHECK_FALSE(static_cast<bool>(VerboseOp("relu")));
  set_verbosity(before);
}
