// What convolutions do besides (fusion.h), on every micro-kernel that this machine runs, against the
// reference in f64.
//
// Data are small integers, scales multiples of a half: all products and sums are exact in f32, so that
// results must be equal, rounded once for bf16.
#include <doctest/doctest.h>

#include <vector>

#include "conv_cases.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "records.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

/// A batch norm's scale and shift for each of `channels`; x of -3 ... 3 becomes at most 6.5.
struct Norm {
  std::vector<double> scale, shift;

  explicit Norm(int64_t channels) : scale(integers(channels, 5)), shift(integers(channels, 6)) {
    for (double& value : scale) value /= 2;
  }
};

std::vector<double> mapped_wgrad(const ConvProblem& p, const ConvKernel& kernel,
                                 const GemmKernel& gemm, int bf16_terms = 0) {
  Buffer x(p.dtype, integers(p.n * p.ic * p.ih * p.iw, 1));
  Buffer dy(p.dtype, integers(p.n * p.oc * p.oh * p.ow, 4));
  Buffer dw(sum_dtype(p.dtype), p.oc * p.ic / p.groups * p.kh * p.kw);
  const Norm norm(p.ic);
  Buffer scale(sum_dtype(p.dtype), norm.scale), shift(sum_dtype(p.dtype), norm.shift);
  conv_wgrad({p, ConvPass::wgrad, &kernel, &gemm, bf16_terms}, x.data(), dy.data(), dw.data(),
             {.scale = scale.data(), .shift = shift.data()});
  CHECK(dw.guarded());
  return dw.values();
}

struct Fused {
  std::vector<double> out, first, second;  // sums a channel
  bool operator==(const Fused&) const = default;
};

const void* pointer(Buffer& buffer, bool given) { return given ? buffer.data() : nullptr; }

/// What of ForwardFusion or DgradFusion a case uses.
struct Parts {
  bool map = false, shift = false, residual = false, relu = false, sums = false;
};

/// y and its moments, or dx and its sums; `out` starts as the residual, which may alias it.
Fused run_fused(const ConvProblem& p, const ConvKernel& kernel, const GemmKernel& gemm,
                ConvPass pass, const Parts& parts, int bf16_terms = 0) {
  const bool forward = pass == ConvPass::forward;
  const int64_t x_items = p.n * p.ic * p.ih * p.iw, y_items = p.n * p.oc * p.oh * p.ow;
  const int64_t channels = forward ? p.oc : p.ic;
  const DType wide = sum_dtype(p.dtype);
  Buffer source(p.dtype, integers(forward ? x_items : y_items, 1));
  Buffer w(p.dtype, integers(p.oc * p.ic / p.groups * p.kh * p.kw, 2));
  Buffer x(p.dtype, integers(x_items, 7)), out(p.dtype, integers(forward ? y_items : x_items, 3));
  const Norm before(p.ic), after(channels);
  Buffer map_scale(wide, before.scale), map_shift(wide, before.shift);
  Buffer scale(wide, after.scale), shift(wide, after.shift), mean(wide, integers(channels, 8));
  Buffer first(DType::f64, channels), second(DType::f64, channels);

  const ConvPlan plan{p, pass, &kernel, &gemm, bf16_terms};
  Buffer packed(DType::u8, plan.packed_bytes());
  plan.pack(w.data(), packed.data());
  void* weight = plan.packed_bytes() > 0 ? packed.data() : w.data();
  const auto sum = [&](Buffer& b) { return parts.sums ? static_cast<double*>(b.data()) : nullptr; };
  if (forward) {
    conv_forward(
        plan, source.data(), weight, out.data(),
        {.source = {.scale = pointer(map_scale, parts.map), .shift = pointer(map_shift, parts.map)},
         .shift = pointer(shift, parts.shift),
         .residual = pointer(out, parts.residual),
         .relu = parts.relu,
         .mean = sum(first),
         .m2 = sum(second)});
  } else {
    conv_dgrad(plan, source.data(), weight, out.data(),
               {.residual = pointer(out, parts.residual),
                .x = pointer(x, parts.sums),
                .scale = pointer(scale, parts.sums),
                .shift = pointer(shift, parts.sums),
                .mean = pointer(mean, parts.sums),
                .sum_dz = sum(first),
                .sum_dzx = sum(second)});
  }
  CHECK(out.guarded());
  if (!parts.sums) return {out.values(), {}, {}};
  return {out.values(), first.values(), second.values()};
}

/// Every case, format and micro-kernel against the reference in f64. `bound` of the sums is relative to
/// `size` of one: 0 for exact ones.
void check_fused(ConvPass pass, const Parts& parts, double bound) {
  const auto ways = enabled_ways();
  each_case([&](const Case& c, MemoryFormat format) {
    const Fused expected = run_fused(c.problem(DType::f64, format), conv_reference,
                                     select_gemm_kernel(DType::f64), pass, parts);
    for (const Way& way : ways) {
      const ConvProblem p = c.problem(way.dtype, format);
      CAPTURE(p.to_string());
      CAPTURE(p.format);
      CAPTURE(std::string(way.gemm->name));
      CAPTURE(way.bf16_terms);
      for (const ConvKernel* engine : engines(p, pass, *way.gemm)) {
        CAPTURE(std::string(engine->name));
        const Fused got = run_fused(p, *engine, *way.gemm, pass, parts, way.bf16_terms);
        const double each = tolerance(*engine);
        CHECK(agree(got.out, rounded(expected.out, p.dtype), each));
        REQUIRE(got.first.size() == expected.first.size());
        const bool forward = pass == ConvPass::forward;
        const double pixels = static_cast<double>(p.n * (forward ? p.oh * p.ow : p.ih * p.iw));
        for (size_t i = 0; i < got.first.size(); ++i) {
          const double first = std::abs(expected.first[i]), second = std::abs(expected.second[i]);
          // What `each` value off makes of a mean, Σ(v - mean)², Σdz and Σdz·(x - mean), |x - mean| ≤ 6.
          const double off_first = forward ? each : each * pixels;
          const double off_second =
              forward ? each * (2 * std::sqrt(pixels * second) + each * pixels) : 6 * each * pixels;
          CHECK(std::abs(got.first[i] - expected.first[i]) <=
                bound * (first + std::sqrt(2 * second)) + off_first);
          CHECK(std::abs(got.second[i] - expected.second[i]) <=
                bound * (second + first + 1) + off_second);
        }
      }
    }
  });
}

}  // namespace

TEST_CASE("Forward maps its source and finishes its sums") {
  check_fused(ConvPass::forward, {.map = true}, 0);
  check_fused(ConvPass::forward, {.shift = true, .relu = true}, 0);
  check_fused(ConvPass::forward, {.residual = true}, 0);
  check_fused(ConvPass::forward, {.map = true, .shift = true, .residual = true, .relu = true}, 0);
}

TEST_CASE("Forward's moments are those of the sums") {
  // A sum of at most 256 distances from the pivot, each off by a roundoff, is off by 257 roundoffs of
  // their sizes' sum: over n values at most n·sqrt(2·m2), as the pivot is the mean of some of them. d2 is
  // a sum of squares, which d·d/n, at most as large, may double.
  check_fused(ConvPass::forward, {.sums = true}, 2 * 258 * kRoundoff);
  check_fused(ConvPass::forward, {.map = true, .sums = true}, 2 * 258 * kRoundoff);
}

TEST_CASE("dgrad adds the residual, masks, and sums what is left, exactly") {
  check_fused(ConvPass::dgrad, {.residual = true}, 0);
  check_fused(ConvPass::dgrad, {.sums = true}, 0);
  check_fused(ConvPass::dgrad, {.residual = true, .sums = true}, 0);
}

TEST_CASE("The gradient of the weight reads x through its map") {
  const auto ways = enabled_ways();
  each_case([&](const Case& c, MemoryFormat format) {
    const std::vector<double> expected =
        mapped_wgrad(c.problem(DType::f64, format), conv_reference, select_gemm_kernel(DType::f64));
    for (const Way& way : ways) {
      const ConvProblem p = c.problem(way.dtype, format);
      CAPTURE(p.to_string());
      CAPTURE(p.format);
      CAPTURE(std::string(way.gemm->name));
      CAPTURE(way.bf16_terms);
      for (const ConvKernel* engine : engines(p, ConvPass::wgrad, *way.gemm)) {
        CAPTURE(std::string(engine->name));
        CHECK(mapped_wgrad(p, *engine, *way.gemm, way.bf16_terms) == expected);
      }
    }
  });
}
