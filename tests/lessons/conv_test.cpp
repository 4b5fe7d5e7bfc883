// Every step of the lesson on convolution against f64, within the bound of its sums, all passes;
// and what the steps refuse. Shapes where drivers break are in kernels/conv_test.cpp, which takes
// the steps, too; these few also run on emulated CPUs.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "conv/ladder.h"
#include "kernels/conv_cases.h"
#include "quern/tensor/cpu_features.h"

using namespace quern;
using namespace quern::lessons;
using namespace quern::test;

namespace {

enum class Kind { real, size, integer };  // of the operands: numbers, their sizes, -3 ... 3

/// A pass by a kernel.
std::vector<double> result(const Case& c, ConvPass pass, const char* kernel, DType dtype,
                           Kind kind = Kind::real) {
  const ConvProblem p = c.problem(dtype, MemoryFormat::channels_last);
  const auto numbers = [&](int64_t count, double phase) {
    if (kind == Kind::integer) return Buffer(dtype, integers(count, static_cast<uint32_t>(phase)));
    std::vector<double> values = waves(count, phase);
    if (kind == Kind::size)
      for (double& value : values) value = std::abs(value);
    return Buffer(dtype, values);
  };
  const int64_t x_items = p.n * p.ic * p.ih * p.iw, y_items = p.n * p.oc * p.oh * p.ow;
  Buffer x = numbers(x_items, 1), w = numbers(p.oc * p.ic * p.kh * p.kw, 2);
  Buffer y = numbers(y_items, 3);
  const auto plan = plan_conv({p, pass, &conv_kernel(kernel), &select_gemm_kernel(dtype)});
  Buffer packed = packed_weight(*plan, w);
  if (pass == ConvPass::wgrad) plan->run(x.data(), y.data(), w.data());
  else if (pass == ConvPass::forward) plan->run(x.data(), packed.data(), y.data());
  else plan->run(y.data(), packed.data(), x.data());
  Buffer& out = pass == ConvPass::wgrad ? w : pass == ConvPass::forward ? y : x;
  CHECK(out.guarded());
  return out.values();
}

const std::vector<Case> kShapes{
    {.n = 2, .groups = 1, .ic = 17, .oc = 35, .size = {9, 6}, .kernel = {3, 3}, .pad = {1, 1}},
    {.n = 2,
     .groups = 1,
     .ic = 5,
     .oc = 33,
     .size = {9, 10},
     .kernel = {3, 3},
     .stride = {2, 2},
     .pad = {1, 1}},
    {.n = 3, .groups = 1, .ic = 18, .oc = 7, .size = {5, 5}, .kernel = {1, 1}},
    {.n = 1,
     .groups = 1,
     .ic = 4,
     .oc = 9,
     .size = {11, 12},
     .kernel = {3, 2},
     .stride = {2, 3},
     .pad = {3, 1},
     .dilation = {2, 2}},
};

}  // namespace

TEST_CASE("Each step of convolution equals f64 within the bound of its sums") {
  size_t ran = 0;
  for (size_t step = 0; step < kConvSteps; ++step) {
    const ConvLesson& lesson = kConvLessons[step];
    CAPTURE(std::string(lesson.name));
    if (!isa_enabled(lesson.isa)) {
      MESSAGE("skipped ", std::string(lesson.name), ": ", why_disabled(lesson.isa));
      continue;
    }
    ++ran;
    for (const Case& c : kShapes) {
      const ConvProblem p = c.problem(DType::f32, lesson.format);
      CAPTURE(p.to_string());
      for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad}) {
        CAPTURE(static_cast<int>(pass));
        if (who_does(step, p, pass).convolve == winograd) {  // whose matrices magnify roundoffs
          const auto exact = result(c, pass, "reference", DType::f64, Kind::integer);
          CHECK(agree(result(c, pass, lesson.name, DType::f32, Kind::integer), exact, 1.0 / 64));
          continue;
        }
        const auto expected = result(c, pass, "reference", DType::f64);
        const auto size = result(c, pass, "reference", DType::f64, Kind::size);
        const auto got = result(c, pass, lesson.name, DType::f32);
        REQUIRE(got.size() == expected.size());
        const int64_t terms = pass == ConvPass::forward ? p.ic * p.kh * p.kw
                              : pass == ConvPass::dgrad ? p.oc * p.kh * p.kw
                                                        : p.n * p.oh * p.ow;
        // A sum is off by a roundoff of its terms' sizes for each of them.
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i)
          wrong += !(std::abs(got[i] - expected[i]) <=
                     static_cast<double>(terms + 2) * 0x1p-24 * size[i]);
        CHECK(wrong == 0);
      }
    }
  }
  CHECK(ran > 0);
}

TEST_CASE("The steps of convolution tell what they refuse, and who does what they leave") {
  const GemmKernel& gemm = select_gemm_kernel(DType::f32);
  for (const ConvKernel& kernel : conv_lesson_kernels()) {
    const auto why_not = [&](const ConvProblem& p) {
      const char* reason = kernel.why_not(p, ConvPass::forward, gemm);
      return std::string(reason ? reason : "");
    };
    ConvProblem p = kShapes[0].problem(DType::bf16, MemoryFormat::channels_last);
    CHECK(why_not(p) == "it convolves f32");
    p.dtype = DType::f32, p.x_gap = 1;
    CHECK(why_not(p) == "it takes no gaps between rows");
    p = case_of("2 groups").problem(DType::f32, MemoryFormat::channels_last);
    CHECK(why_not(p) == "it takes no groups");
  }
  const ConvProblem plain = kShapes[0].problem(DType::f32, MemoryFormat::channels_last);
  const ConvProblem strided = kShapes[1].problem(DType::f32, MemoryFormat::channels_last);
  const auto step = [](const ConvProblem& p, ConvPass pass) {
    return std::string(who_does(7, p, pass).name);
  };
  CHECK(step(plain, ConvPass::forward) == "lesson_conv_7");
  CHECK(step(plain, ConvPass::dgrad) == "lesson_conv_7");
  CHECK(step(plain, ConvPass::wgrad) == "lesson_conv_6");
  CHECK(step(strided, ConvPass::dgrad) == "lesson_conv_5");
  CHECK(step(strided, ConvPass::forward) == "lesson_conv_4");
}
