// What convolutions do besides (epilogue.h), on every micro-kernel that this machine runs, against
// the reference in f64.
//
// Data are small integers, scales multiples of a half: all products and sums are exact in f32, so
// that results must be equal, rounded once for bf16.
#include <doctest/doctest.h>

#include <map>
#include <tuple>
#include <vector>

#include "conv_cases.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "records.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

/// integers(), made once: tests go through the same cases again and again.
Buffer integers_of(DType dtype, int64_t count, uint32_t seed) {
  static std::map<std::tuple<DType, int64_t, uint32_t>, Buffer> made;
  const std::tuple key{dtype, count, seed};
  auto found = made.find(key);
  if (found == made.end()) found = made.emplace(key, Buffer(dtype, integers(count, seed))).first;
  return found->second;
}

/// A batch norm's center, scale and shift for each of `channels`; x of -3 ... 3 becomes at most 12.
struct Norm {
  Buffer center, scale, shift;

  Norm(DType dtype, int64_t channels)
      : center(dtype, integers(channels, 8)),
        scale(dtype, integers(channels, 5)),
        shift(dtype, integers(channels, 6)) {
    for (int64_t i = 0; i < channels; ++i) scale.set(i, scale[i] / 2);
  }
  operator ChannelMap() {
    return {.center = center.data(), .scale = scale.data(), .shift = shift.data()};
  }
};

std::vector<double> mapped_wgrad(ConvProblem p, const ConvKernel& kernel, const GemmKernel& gemm,
                                 int bf16_terms = 0) {
  Buffer x = integers_of(p.dtype, p.n * p.ic * p.ih * p.iw, 1);
  Buffer dy = integers_of(p.dtype, p.n * p.oc * p.oh * p.ow, 4);
  Buffer dw(sum_dtype(p.dtype), p.oc * p.ic / p.groups * p.kh * p.kw);
  Norm norm(sum_dtype(p.dtype), p.ic);
  p.maps = true;
  plan_conv({p, ConvPass::wgrad, &kernel, &gemm, bf16_terms})
      ->run(x.data(), dy.data(), dw.data(), {}, norm);
  CHECK(dw.guarded());
  return dw.values();
}

struct Fused {
  std::vector<double> out, first, second;  // sums a channel
  bool operator==(const Fused&) const = default;
};

const void* pointer(Buffer& buffer, bool given) { return given ? buffer.data() : nullptr; }

/// What of a prologue and an epilogue a case uses.
struct Parts {
  bool map = false, shift = false, residual = false, sums = false;
  Activation activation = Activation::none;  ///< of what is stored, read or differentiated
};

/// y and its moments, or dx and its sums; `out` starts as the residual, which may alias it.
Fused run_fused(ConvProblem p, const ConvKernel& kernel, const GemmKernel& gemm, ConvPass pass,
                const Parts& parts, int bf16_terms = 0) {
  const bool forward = pass == ConvPass::forward;
  const int64_t x_items = p.n * p.ic * p.ih * p.iw, y_items = p.n * p.oc * p.oh * p.ow;
  const int64_t channels = forward ? p.oc : p.ic;
  const DType wide = sum_dtype(p.dtype);
  Buffer source = integers_of(p.dtype, forward ? x_items : y_items, 1);
  Buffer w = integers_of(p.dtype, p.oc * p.ic / p.groups * p.kh * p.kw, 2);
  Buffer x = integers_of(p.dtype, x_items, 7);
  Buffer out = integers_of(p.dtype, forward ? y_items : x_items, 3);
  Norm before(wide, p.ic), after(wide, channels);
  Buffer first(DType::f64, channels), second(DType::f64, channels);

  p.maps = forward && parts.map, p.sums = parts.sums;
  const auto plan = plan_conv({p, pass, &kernel, &gemm, bf16_terms});
  Buffer weight = packed_weight(*plan, w);
  using Kind = Epilogue::Kind;
  Epilogue epilogue = activate(pointer(after.shift, parts.shift), pointer(out, parts.residual),
                               parts.sums ? Activation::none : parts.activation);
  ChannelMap read = before;
  if (parts.activation == Activation::relu6) read.activation = Activation::relu6;
  if (parts.sums) {
    epilogue.kind = forward ? Kind::moments : Kind::gradient;
    epilogue.first = first.data(), epilogue.second = second.data();
  }
  if (forward) {
    plan->run(source.data(), weight.data(), out.data(), epilogue, parts.map ? read : ChannelMap{});
  } else {
    epilogue.x = pointer(x, parts.sums);
    if (parts.sums) {
      epilogue.map = after;
      if (parts.activation == Activation::relu6) epilogue.map.activation = Activation::relu6;
    }
    plan->run(source.data(), weight.data(), out.data(), epilogue);
  }
  CHECK(out.guarded());
  if (!parts.sums) return {out.values(), {}, {}};
  return {out.values(), first.values(), second.values()};
}

/// Every case, format and micro-kernel against the reference in f64; on an emulated CPU two of four
/// cases, which for the next call are the others. `bound` of the sums is relative to `size` of one:
/// 0 for exact ones.
void check_fused(ConvPass pass, const Parts& parts, double bound) {
  static size_t calls = 0;
  size_t turn = 2 * calls++;
  const auto ways = enabled_ways();
  each_case([&](const Case& c, MemoryFormat format) {
    if (kEmulatedCpu && turn++ / 2 % 2 != 0) return;
    const Fused expected = run_fused(c.problem(DType::f64, format), conv_kernel("reference"),
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
          // What `each` value off makes of a mean, Σ(v - mean)², Σdz and Σdz·(x - center),
          // |x - center| ≤ 6.
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
  check_fused(ConvPass::forward, {.shift = true, .activation = Activation::relu}, 0);
  check_fused(ConvPass::forward, {.residual = true}, 0);
  for (const Activation activation : {Activation::relu, Activation::relu6})
    check_fused(ConvPass::forward,
                {.map = true, .shift = true, .residual = true, .activation = activation}, 0);
}

TEST_CASE("Forward's moments are those of the sums") {
  // A sum of at most 256 distances from the pivot, each off by a roundoff, is off by 257 roundoffs
  // of their sizes' sum: over n values at most n·sqrt(2·m2), as the pivot is the mean of some of
  // them. d2 is a sum of squares, which d·d/n, at most as large, may double.
  check_fused(ConvPass::forward, {.sums = true}, 2 * 258 * kRoundoff);
  check_fused(ConvPass::forward, {.map = true, .sums = true}, 2 * 258 * kRoundoff);
}

TEST_CASE("dgrad adds the residual, masks, and sums what is left, exactly") {
  check_fused(ConvPass::dgrad, {.residual = true}, 0);
  check_fused(ConvPass::dgrad, {.sums = true}, 0);
  check_fused(ConvPass::dgrad, {.residual = true, .sums = true}, 0);
  check_fused(ConvPass::dgrad, {.sums = true, .activation = Activation::relu6}, 0);
}

TEST_CASE("The gradient of the weight reads x through its map") {
  const auto ways = enabled_ways();
  each_case([&](const Case& c, MemoryFormat format) {
    const std::vector<double> expected = mapped_wgrad(
        c.problem(DType::f64, format), conv_kernel("reference"), select_gemm_kernel(DType::f64));
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

TEST_CASE("dgrad passes on just what forward's map left above 0") {
  // x is so small, and shift so near center·scale, that each rounding on the way decides about the
  // sign. The weight is the identity: forward gives what it maps x to, dgrad of ones the mask.
  const Case c{.n = 1, .groups = 1, .ic = 45, .oc = 45, .size = {7, 9}, .kernel = {1, 1}};
  for (const Way& way : enabled_ways()) {
    for (MemoryFormat format : kFormats) {
      CAPTURE(std::string(way.gemm->name));
      CAPTURE(way.bf16_terms);
      ConvProblem p = c.problem(way.dtype, format);
      const int64_t items = p.ic * p.ih * p.iw;
      const DType wide = sum_dtype(p.dtype);
      const double u = wide == DType::f64 ? 0x1p-53 : 0x1p-24;
      Buffer x(p.dtype, waves(items, 1)), dy(p.dtype, std::vector<double>(x.values().size(), 1));
      Buffer y(p.dtype, items), dz(p.dtype, items), w(p.dtype, integers(p.oc * p.ic, 1));
      Buffer center(wide, waves(p.ic, 2)), scale(wide, waves(p.ic, 3)), shift(wide, p.ic);
      Buffer sum_dz(DType::f64, p.ic), sum_dzx(DType::f64, p.ic);
      for (int64_t i = 0; i < items; ++i) x.set(i, 2 * u * x[i]);
      for (int64_t i = 0; i < p.ic; ++i) shift.set(i, center[i] * scale[i]);
      for (int64_t i = 0; i < p.oc * p.ic; ++i) w.set(i, i % (p.ic + 1) == 0);

      const ChannelMap map{center.data(), scale.data(), shift.data()};
      for (const ConvKernel* engine : engines(p, ConvPass::forward, *way.gemm)) {
        CAPTURE(std::string(engine->name));
        const auto plan = [&](ConvPass pass) {
          return plan_conv({p, pass, engine, way.gemm, way.bf16_terms});
        };
        p.maps = true, p.sums = false;
        const auto forward = plan(ConvPass::forward);
        forward->run(x.data(), packed_weight(*forward, w).data(), y.data(), {}, map);
        p.maps = false, p.sums = true;
        const auto dgrad = plan(ConvPass::dgrad);
        dgrad->run(dy.data(), packed_weight(*dgrad, w).data(), dz.data(),
                   {.kind = Epilogue::Kind::gradient,
                    .map = map,
                    .x = x.data(),
                    .first = sum_dz.data(),
                    .second = sum_dzx.data()});
        int64_t wrong = 0, passed = 0;
        for (int64_t i = 0; i < items; ++i) {
          wrong += dz[i] != (y[i] > 0);
          passed += y[i] > 0;
        }
        CHECK(wrong == 0);
        CHECK(passed > items / 10);
        CHECK(passed < items - items / 10);
      }
    }
  }
}
