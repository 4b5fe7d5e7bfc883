// Every convolution engine on every micro-kernel that this machine runs, over shapes where they
// break.
//
// Data are integers: all products and sums are exact in f32 (below 2^24; Winograd's are multiples
// of a quarter), so that any order of summation gives the same number, and results must equal the
// f64 reference's, rounded once for bf16; but for F(4×4, 3×3), see tolerance().
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "conv_cases.h"
#include "larger.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "records.h"
#include "tensor/threads.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

struct Data {
  std::vector<double> x, w, bias, dy;

  /// One of x, w and dy may be `wide`: of nine bits, which take two terms of bf16.
  explicit Data(const ConvProblem& p, int64_t wide = -1)
      : x(integers(p.n * p.ic * p.ih * p.iw, 1)),
        w(integers(p.oc * p.ic / p.groups * p.kh * p.kw, 2)),
        bias(integers(p.oc, 3)),
        dy(integers(p.n * p.oc * p.oh * p.ow, 4)) {
    std::vector<double>* const all[] = {&x, &w, &dy};
    if (wide < 0) return;
    std::vector<double>& values = *all[wide];
    const std::vector<double> low = integers(std::ssize(values), 5);
    for (size_t i = 0; i < values.size(); ++i) values[i] = 128 * values[i] + low[i];
  }
};

struct Results {
  std::vector<double> y, y_bias, dx, dw;
};

/// How often an engine computed forward, dgrad and wgrad itself.
using Tally = std::map<std::string_view, std::array<int, 3>>;

/// All passes of `kernel`, or of conv_brgemm where it has none, which the tally leaves out; checks
/// that nothing outside the results is written.
Results run(const ConvProblem& p, const ConvKernel& kernel, const GemmKernel& gemm,
            const Data& data, int bf16_terms = 0, Tally* tally = nullptr) {
  Buffer x(p.dtype, data.x), w(p.dtype, data.w), dy(p.dtype, data.dy);
  Buffer bias(sum_dtype(p.dtype), data.bias);
  Buffer y(p.dtype, static_cast<int64_t>(data.dy.size()));
  Buffer y_bias(p.dtype, static_cast<int64_t>(data.dy.size()));
  Buffer dx(p.dtype, static_cast<int64_t>(data.x.size()));
  Buffer dw(sum_dtype(p.dtype), static_cast<int64_t>(data.w.size()));
  const auto plan = [&](ConvPass pass) {
    const auto all = engines(p, pass, gemm);
    const bool can =
        &kernel == &conv_kernel("reference") || std::count(all.begin(), all.end(), &kernel) > 0;
    if (tally && can) ++(*tally)[kernel.name][static_cast<size_t>(pass)];
    return plan_conv({p, pass, can ? &kernel : &conv_kernel("brgemm"), &gemm, bf16_terms});
  };
  const auto forward = plan(ConvPass::forward), dgrad = plan(ConvPass::dgrad);
  Buffer forward_weight = packed_weight(*forward, w), dgrad_weight = packed_weight(*dgrad, w);
  forward->run(x.data(), forward_weight.data(), y.data());
  forward->run(x.data(), forward_weight.data(), y_bias.data(), activate(bias.data()));
  dgrad->run(dy.data(), dgrad_weight.data(), dx.data());
  plan(ConvPass::wgrad)->run(x.data(), dy.data(), dw.data());
  CHECK(y.guarded());
  CHECK(y_bias.guarded());
  CHECK(dx.guarded());
  CHECK(dw.guarded());
  return {y.values(), y_bias.values(), dx.values(), dw.values()};
}

const GemmKernel& f64_gemm() { return select_gemm_kernel(DType::f64); }

/// Has each engine computed what these ways have for it, in one case at least?
void check_tally(Tally tally, const std::vector<Way>& ways) {
  const auto computed = [&](std::string_view engine, std::initializer_list<ConvPass> passes) {
    CAPTURE(std::string(engine));
    for (ConvPass pass : passes) {
      CAPTURE(static_cast<int>(pass));
      CHECK(tally[engine][static_cast<size_t>(pass)] > 0);
    }
  };
  using enum ConvPass;
  const auto added = added_engines();
  if (!added.empty()) {
    CHECK(tally.size() > 0);
    // Who runs all but AMX runs all of them.
    const auto most = {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::neon, Isa::neon_bf16};
    const bool all =
        std::ranges::all_of(most, [](Isa isa) { return isa_enabled(isa) || !has_kernels(isa); });
    if (!all) MESSAGE("skipped: engines that need more than ", std::string(to_string(max_isa())));
    for (const ConvKernel* engine : added)
      if (all || tally.contains(engine->name)) computed(engine->name, {forward, dgrad, wgrad});
    return;
  }
  computed("brgemm", {forward, dgrad, wgrad});
  if (std::ranges::any_of(ways, [](const Way& way) { return way.bf16_terms == 0; }))
    computed("kn2row", {forward, dgrad});
  const auto any = [&](auto is) { return std::ranges::any_of(ways, is); };
  if (any([](const Way& way) { return way.dtype != DType::f64; }))
    computed("depthwise", {forward, dgrad, wgrad});
  if (any([](const Way& way) { return way.gemm->a == DType::f32; })) {
    computed("winograd", {forward, dgrad});
    computed("winograd_4x4", {forward, dgrad});
  }
  if (any([](const Way& way) {
        return way.gemm->a == DType::f32 && way.gemm->isa != Isa::portable;
      }))
    computed("winograd", {wgrad});
}

/// Compares all passes with the f64 reference.
void check_case(const Case& c, MemoryFormat format, const std::vector<Way>& ways, Tally& tally) {
  const ConvProblem exact = c.problem(DType::f64, format);
  const Data plain(exact), wide(exact, (c.ic + c.oc + c.size.w) % 3);
  const Results of_plain = run(exact, conv_kernel("reference"), f64_gemm(), plain);
  const auto is_split = [](const Way& way) { return way.bf16_terms == 2; };
  Results of_wide;
  if (std::ranges::any_of(ways, is_split))
    of_wide = run(exact, conv_kernel("reference"), f64_gemm(), wide);
  for (const Way& way : ways) {
    const bool split = is_split(way);
    const Results& expected = split ? of_wide : of_plain;
    const ConvProblem p = c.problem(way.dtype, format);
    CAPTURE(p.to_string());
    CAPTURE(p.format);
    CAPTURE(std::string(way.gemm->name));
    CAPTURE(way.bf16_terms);
    for (const ConvKernel* engine : engines(p, ConvPass::forward, *way.gemm)) {
      CAPTURE(std::string(engine->name));
      const Results got = run(p, *engine, *way.gemm, split ? wide : plain, way.bf16_terms, &tally);
      CHECK(agree(got.y, rounded(expected.y, p.dtype), tolerance(*engine)));
      CHECK(agree(got.y_bias, rounded(expected.y_bias, p.dtype), tolerance(*engine)));
      CHECK(agree(got.dx, rounded(expected.dx, p.dtype), tolerance(*engine)));
      CHECK(got.dw == expected.dw);
    }
  }
}

}  // namespace

TEST_CASE("Every engine equals the reference on every micro-kernel, exactly") {
  const auto ways = enabled_ways();
  Tally tally;
  each_case([&](const Case& c, MemoryFormat format) { check_case(c, format, ways, tally); });
  check_tally(tally, ways);
}

TEST_CASE("f32 as terms of bf16 on emulated AMX tiles equals the reference, exactly") {
  if (kEmulatedCpu) {  // a minute, of a tile that is emulated a second time
    MESSAGE("skipped: emulated AMX on an emulated CPU");
    return;
  }
  if (!added_engines().empty()) {
    MESSAGE("skipped: engines that were added use no such tile");
    return;
  }
  const std::vector<Way> ways{{&kEmulatedAmx, DType::f32, 1}, {&kEmulatedAmx, DType::f32, 2}};
  Tally tally;
  for (size_t i = 0; i < kCases.size(); i += 2)
    check_case(kCases[i], kFormats[i / 2 % 2], ways, tally);
  check_tally(tally, ways);
}

TEST_CASE("Every engine equals the reference on shapes drawn at random") {
  const GemmKernel& bf16 = select_gemm_kernel(DType::bf16);
  const std::vector<Way> best{
      {&select_gemm_kernel(DType::f32), DType::f32}, {&bf16, DType::bf16}, {&bf16, DType::f32, 2}};
  Draws draw{7};
  Tally tally;
  int run = 0;
  while (run < (kEmulatedCpu || !added_engines().empty() ? 30 : 240)) {
    Case c{.n = draw(1, 3),
           .groups = draw(1, 3),
           .ic = draw(1, 24),
           .oc = draw(1, 40),
           .size = {draw(1, 17), draw(1, 19)},
           .kernel = {draw(1, 5), draw(1, 5)},
           .stride = {draw(1, 4), draw(1, 4)},
           .pad = {draw(0, 4), draw(0, 4)},
           .dilation = {draw(1, 3), draw(1, 3)}};
    if (run % 3 == 0) c.groups = draw(4, 12), c.ic = draw(1, 12), c.oc = draw(1, 9);
    c.ic *= c.groups, c.oc *= c.groups;
    if (c.size.h + 2 * c.pad.h < c.dilation.h * (c.kernel.h - 1) + 1) continue;
    if (c.size.w + 2 * c.pad.w < c.dilation.w * (c.kernel.w - 1) + 1) continue;
    check_case(c, kFormats[run++ % 2], best, tally);
  }
  const std::string_view engine = added_engines().empty() ? "brgemm" : added_engines()[0]->name;
  for (const ConvPass pass : {ConvPass::forward, ConvPass::dgrad, ConvPass::wgrad})
    CHECK(tally[engine][static_cast<size_t>(pass)] > 0);
}

TEST_CASE("The reference in f32 and bf16 equals the reference in f64") {
  for (const char* name :
       {"1×1, odd", "3×3, stride 2", "3×3, strides and dilations", "3 groups, stride 2"}) {
    const Case& c = case_of(name);
    for (MemoryFormat format : kFormats) {
      const ConvProblem exact = c.problem(DType::f64, format);
      const Data data(exact);
      const Results expected = run(exact, conv_kernel("reference"), f64_gemm(), data);
      for (DType dtype : {DType::f32, DType::bf16}) {
        const Results got =
            run(c.problem(dtype, format), conv_kernel("reference"), f64_gemm(), data);
        CHECK(got.y == rounded(expected.y, dtype));
        CHECK(got.y_bias == rounded(expected.y_bias, dtype));
        CHECK(got.dx == rounded(expected.dx, dtype));
        CHECK(got.dw == expected.dw);
      }
    }
  }
}

TEST_CASE("The reference by hand: one dot product a pixel") {
  // x 1×1×3×3 = 1...9, w 2×2 = (1, 2; 3, 4), stride 1: y = x·w over each 2×2 window.
  const Case c{.n = 1, .groups = 1, .ic = 1, .oc = 1, .size = {3, 3}, .kernel = {2, 2}};
  const ConvProblem p = c.problem(DType::f64, MemoryFormat::contiguous);
  Data data(p);
  data.x = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  data.w = {1, 2, 3, 4};
  data.bias = {10};
  data.dy = {1, 2, 3, 4};
  const Results r = run(p, conv_kernel("reference"), f64_gemm(), data);
  CHECK(r.y == std::vector<double>{37, 47, 67, 77});
  CHECK(r.y_bias == std::vector<double>{47, 57, 77, 87});
  CHECK(r.dx == std::vector<double>{1, 4, 4, 6, 20, 16, 9, 24, 16});
  CHECK(r.dw == std::vector<double>{37, 47, 67, 77});
}

TEST_CASE("Rounding stays within the bound of one f32 sum") {
  // Each of the K products and additions rounds by at most u = 2^-24 of Σ|x·w| so far: |error| <=
  // (K+1)·u·Σ|x·w|.
  const Case c{
      .n = 1, .groups = 1, .ic = 65, .oc = 9, .size = {9, 9}, .kernel = {3, 3}, .pad = {1, 1}};
  ConvProblem p = c.problem(DType::f64, MemoryFormat::channels_last);
  Data data(p);
  for (auto* values : {&data.x, &data.w, &data.dy})
    for (double& value : *values)
      value = static_cast<double>(static_cast<float>(
          std::sin(value * 12.9898 + 0.1 * static_cast<double>(&value - values->data()))));
  Data magnitude = data;
  for (auto* values : {&magnitude.x, &magnitude.w, &magnitude.dy})
    for (double& value : *values) value = std::abs(value);
  const Results expected = run(p, conv_kernel("reference"), f64_gemm(), data);
  const Results bound = run(p, conv_kernel("reference"), f64_gemm(), magnitude);
  p.dtype = DType::f32;
  const Results got = run(p, conv_kernel("brgemm"), select_gemm_kernel(DType::f32), data);
  const auto check_within = [](const std::vector<double>& a, const std::vector<double>& b,
                               const std::vector<double>& size, double terms) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i)
      worst = test::larger(worst, std::abs(a[i] - b[i]) / ((terms + 1) * 0x1p-24 * size[i]));
    CHECK(worst <= 1.0);
  };
  check_within(got.y, expected.y, bound.y, 65 * 9);
  check_within(got.dx, expected.dx, bound.dx, 9 * 9);
  check_within(got.dw, expected.dw, bound.dw, 81);
}

TEST_CASE("Results have the same bits with 1, 2 and 3 threads") {
  const test::Threads kept;
  // Too large for cells to share one copy of x: those of a block find what their thread copied
  // before.
  const Case copied_by_threads{
      .n = 1, .groups = 1, .ic = 16, .oc = 33, .size = {200, 200}, .kernel = {1, 1}, .pad = {1, 1}};
  for (const Case& c : {case_of("3×3, odd"), case_of("stem"), case_of("3×3, larger than a cache"),
                        case_of("3×3, cells that share a block"), copied_by_threads}) {
    const ConvProblem p = c.problem(DType::f32, MemoryFormat::channels_last);
    Data data(p);
    for (auto* values : {&data.x, &data.w, &data.dy})
      for (double& value : *values)
        value = std::sin(value + static_cast<double>(&value - values->data()));
    std::vector<Way> ways{{&select_gemm_kernel(DType::f32), DType::f32},
                          {&select_gemm_kernel(DType::bf16), DType::f32, 2}};
    if (!kEmulatedCpu) ways.push_back({&kEmulatedAmx, DType::f32, 2});
    for (const Way& way : different(ways)) {
      for (const ConvKernel* engine : engines(p, ConvPass::forward, *way.gemm)) {
        std::vector<Results> results;
        for (int threads : {1, 2, 3}) {
          set_num_threads(threads);
          results.push_back(run(p, *engine, *way.gemm, data, way.bf16_terms));
        }
        for (const Results& r : results) {
          CHECK(r.y == results[0].y);
          CHECK(r.dx == results[0].dx);
          CHECK(r.dw == results[0].dw);
        }
      }
    }
  }
}

TEST_CASE("The gradient of the weight has the same bits with more threads than cells") {
  const test::Threads kept;
  // Worth some hundred cells, eight of which it is cut into for few threads; odd numbers of pixels.
  const Case c{
      .n = 3, .groups = 1, .ic = 70, .oc = 130, .size = {15, 13}, .kernel = {3, 3}, .pad = {1, 1}};
  const Case pointwise{
      .n = 3, .groups = 1, .ic = 130, .oc = 270, .size = {15, 13}, .kernel = {1, 1}};
  std::vector<Way> ways{{&select_gemm_kernel(DType::f32), DType::f32},
                        {&select_gemm_kernel(DType::bf16), DType::f32, 2},
                        {&select_gemm_kernel(DType::bf16), DType::bf16}};
  if (!kEmulatedCpu) ways.push_back({&kEmulatedAmx, DType::bf16});
  for (const Case& shape : {c, pointwise}) {
    for (const Way& way : different(ways)) {
      for (MemoryFormat format : kFormats) {
        const ConvProblem p = shape.problem(way.dtype, format);
        Data data(p);
        for (auto* values : {&data.x, &data.dy})
          for (double& value : *values)
            value = std::sin(value + static_cast<double>(&value - values->data()));
        Buffer x(p.dtype, data.x), dy(p.dtype, data.dy);
        for (const ConvKernel* engine : engines(p, ConvPass::wgrad, *way.gemm)) {
          CAPTURE(std::string(engine->name));
          CAPTURE(std::string(way.gemm->name));
          std::vector<double> first;
          for (int threads : {1, 9, 65}) {
            CAPTURE(threads);
            set_num_threads(threads);
            const auto plan = plan_conv({p, ConvPass::wgrad, engine, way.gemm, way.bf16_terms});
            Buffer dw(sum_dtype(p.dtype), static_cast<int64_t>(data.w.size()));
            plan->run(x.data(), dy.data(), dw.data());
            if (threads == 1) first = dw.values();
            CHECK(dw.values() == first);
          }
        }
      }
    }
  }
}

TEST_CASE("The gradient of the bias sums dy") {
  for (MemoryFormat format : kFormats) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const ConvProblem p = case_of("3×3, stride 3").problem(dtype, format);
      const Data data(p);
      Buffer dy(dtype, data.dy), db(sum_dtype(dtype), p.oc);
      conv_bias_grad(p, dy.data(), db.data());
      CHECK(db.guarded());
      std::vector<double> expected(static_cast<size_t>(p.oc));
      const bool last = format == MemoryFormat::channels_last;
      for (size_t i = 0; i < data.dy.size(); ++i) {
        const int64_t at = static_cast<int64_t>(i);
        expected[static_cast<size_t>(last ? at % p.oc : at / (p.oh * p.ow) % p.oc)] += data.dy[i];
      }
      CHECK(db.values() == expected);
    }
  }
}

TEST_CASE("A problem names itself as the field does") {
  CHECK_EQ(case_of("2 groups").problem(DType::f32, MemoryFormat::contiguous).to_string(),
           "mb2_g2ic34oc66_ih6oh6kh3sh1dh0ph1_iw7ow7kw3sw1dw0pw1");
}
