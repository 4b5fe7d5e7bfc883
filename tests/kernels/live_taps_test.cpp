// Convolutions whose filters reach into padding alone (live_taps.h) equal those by all taps.
#include "quern/ops/kernels/conv/live_taps.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "conv_cases.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

struct Filter {
  Case c;
  Pair live, pad;  // what is left of the filter, and before it
};

const Filter kFilters[] = {
    {{.n = 3, .groups = 1, .ic = 20, .oc = 17, .size = {1, 1}, .kernel = {3, 3}, .pad = {1, 1}},
     {1, 1},
     {0, 0}},
    {{.n = 2, .groups = 18, .ic = 18, .oc = 18, .size = {2, 1}, .kernel = {5, 5}, .pad = {2, 2}},
     {3, 1},
     {1, 0}},
    {{.n = 1,
      .groups = 2,
      .ic = 8,
      .oc = 6,
      .size = {9, 8},
      .kernel = {3, 3},
      .pad = {12, 2},
      .dilation = {12, 2}},
     {1, 3},
     {0, 2}},
    {{.n = 2,
      .groups = 1,
      .ic = 5,
      .oc = 4,
      .size = {2, 2},
      .kernel = {3, 3},
      .stride = {2, 2},
      .pad = {1, 1}},
     {2, 2},
     {0, 0}},
    // Outputs that reach nothing at all; their filter stays as it is.
    {{.n = 1,
      .groups = 1,
      .ic = 3,
      .oc = 4,
      .size = {5, 7},
      .kernel = {2, 2},
      .pad = {40, 0},
      .dilation = {60, 1}},
     {2, 2},
     {40, 0}},
};

/// What the pass makes of integers: y, dx or dw; x is read through a map if the plan is for one.
std::vector<double> run(const ConvPlan& plan) {
  const ConvProblem& p = plan.problem;
  const DType wide = sum_dtype(p.dtype);
  const bool wgrad = plan.pass == ConvPass::wgrad;
  Buffer x(p.dtype, integers(p.n * p.ic * p.ih * p.iw, 1));
  Buffer w(p.dtype, integers(p.oc * (p.ic / p.groups) * p.kh * p.kw, 2));
  Buffer dy(p.dtype, integers(p.n * p.oc * p.oh * p.ow, 3));
  Buffer center(wide, integers(p.ic, 4)), scale(wide, integers(p.ic, 5));
  Buffer shift(wide, integers(p.ic, 6));
  Buffer& like = wgrad ? w : plan.pass == ConvPass::forward ? dy : x;
  Buffer to(wgrad ? wide : p.dtype, std::vector<double>(like.values().size(), 7.0));
  Buffer packed = wgrad ? Buffer(DType::u8, int64_t{0}) : packed_weight(plan, w);
  plan.run(plan.pass == ConvPass::dgrad ? dy.data() : x.data(), wgrad ? dy.data() : packed.data(),
           to.data(), {},
           p.maps ? ChannelMap{center.data(), scale.data(), shift.data(), Activation::relu}
                  : ChannelMap{});
  CHECK(to.guarded());
  return to.values();
}

std::unique_ptr<const ConvPlan> plan_by_live_taps(const ConvProblem& p, ConvPass pass) {
  return plan_of_live_taps(p, plan_conv(choose_conv(p.with_live_taps(), pass)));
}

}  // namespace

TEST_CASE("Taps that meet padding alone are cut off, and results stay what they are") {
  for (const Filter& filter : kFilters)
    for (DType dtype : {DType::f32, DType::bf16, DType::f64})
      for (MemoryFormat format : kFormats)
        for (ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad})
          for (bool maps : {false, true}) {
            ConvProblem p = filter.c.problem(dtype, format);
            p.maps = maps && pass != ConvPass::dgrad;
            CAPTURE(p.to_string());
            const ConvProblem live = p.with_live_taps();
            CHECK_EQ(live.kh, filter.live.h);
            CHECK_EQ(live.kw, filter.live.w);
            CHECK_EQ(live.pad_h, filter.pad.h);
            CHECK_EQ(live.pad_w, filter.pad.w);
            ConvProblem exact = p;
            exact.dtype = DType::f64;
            const auto plan = plan_by_live_taps(p, pass);
            CHECK(plan->problem == p);
            const auto expected = plan_conv(
                {exact, pass, &conv_kernel("reference"), &select_gemm_kernel(DType::f64)});
            CHECK(run(*plan) ==
                  rounded(run(*expected), pass == ConvPass::wgrad ? sum_dtype(dtype) : dtype));
          }
}

TEST_CASE("Both gradients at once are those of all taps") {
  const ConvProblem p =
      Case{
          .n = 2, .groups = 18, .ic = 18, .oc = 18, .size = {2, 1}, .kernel = {5, 5}, .pad = {2, 2}}
          .problem(DType::f32, MemoryFormat::channels_last);
  const auto both = plan_by_live_taps(p, ConvPass::dgrad);
  REQUIRE(both->differentiates_at_once());
  Buffer x(DType::f32, integers(p.n * p.ic * p.ih * p.iw, 1));
  Buffer w(DType::f32, integers(p.oc * p.kh * p.kw, 2));
  Buffer dy(DType::f32, integers(p.n * p.oc * p.oh * p.ow, 3));
  Buffer dx(DType::f32, std::ssize(x.values()));
  Buffer dw(DType::f32, std::vector<double>(w.values().size(), 7.0));
  both->run_both(dy.data(), packed_weight(*both, w).data(), dx.data(), dw.data(), {.x = x.data()});
  CHECK(dx.values() == run(*plan_by_live_taps(p, ConvPass::dgrad)));
  CHECK(dw.values() == run(*plan_by_live_taps(p, ConvPass::wgrad)));
}
