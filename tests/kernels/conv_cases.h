// What the tests of convolutions share: shapes where drivers break, exact data, and the
// micro-kernels.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "amx_emulation.h"
#include "emulated_cpu.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/conv/kn2row/kn2row.h"
#include "quern/ops/kernels/conv/winograd/winograd.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/bfloat16.h"
#include "quern/tensor/cpu_features.h"
#include "records.h"

namespace quern::test {

using namespace kernels;

struct Pair {
  int64_t h, w;
};
struct Case {
  std::string_view name = {};  // of those that tests pick
  int64_t n, groups, ic, oc;   // channels of all groups
  Pair size, kernel, stride = {1, 1}, pad = {0, 0}, dilation = {1, 1};

  ConvProblem problem(DType dtype, MemoryFormat format) const {
    const auto out = [](int64_t in, int64_t k, int64_t s, int64_t p, int64_t d) {
      return (in + 2 * p - d * (k - 1) - 1) / s + 1;
    };
    return {.n = n,
            .ic = ic,
            .ih = size.h,
            .iw = size.w,
            .oc = oc,
            .oh = out(size.h, kernel.h, stride.h, pad.h, dilation.h),
            .ow = out(size.w, kernel.w, stride.w, pad.w, dilation.w),
            .kh = kernel.h,
            .kw = kernel.w,
            .stride_h = stride.h,
            .stride_w = stride.w,
            .pad_h = pad.h,
            .pad_w = pad.w,
            .dilation_h = dilation.h,
            .dilation_w = dilation.w,
            .groups = groups,
            .dtype = dtype,
            .format = format};
  }
};

/// In conv_cases.cpp.
extern const std::vector<Case> kCases;

inline const Case& case_of(std::string_view name) {
  const auto found = std::ranges::find(kCases, name, &Case::name);
  REQUIRE(found != kCases.end());
  return *found;
}

/// Integers by chance, the same ones from the same state on.
struct Draws {
  uint32_t state;
  int64_t operator()(int64_t low, int64_t high) {
    state = state * 1664525u + 1013904223u;
    return low + static_cast<int64_t>(state >> 8) % (high - low + 1);
  }
};

/// -3 ... 3, exact in every dtype.
inline std::vector<double> integers(int64_t count, uint32_t seed) {
  std::vector<double> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 1;
  for (double& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<double>(static_cast<int32_t>((state >> 16) * 7 >> 16) - 3);
  }
  return values;
}

/// Like numbers of a network, exact in f32: both signs, mostly below 1.
inline std::vector<double> waves(int64_t count, double phase) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const double t = static_cast<double>(i);
    values[i] = static_cast<double>(
        static_cast<float>(std::sin(12.9898 * t + phase) * std::cos(0.37 * t * t)));
  }
  return values;
}

inline DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

inline std::vector<double> rounded(std::vector<double> values, DType dtype) {
  if (dtype == DType::bf16)
    for (double& value : values) value = static_cast<double>(static_cast<float>(bfloat16(value)));
  return values;
}

/// Of Arm CPUs, has it Neon alone?
inline bool neon_alone() { return !isa_enabled(Isa::neon_bf16) && !isa_enabled(Isa::sve); }

/// Those that this machine runs, and the AMX kernel on emulated tiles; on an emulated CPU those
/// that it takes and one with Neon alone does not.
inline std::vector<const GemmKernel*> enabled_gemms() {
  std::vector<const GemmKernel*> enabled;
  if (kEmulatedCpu) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const GemmKernel& gemm = select_gemm_kernel(dtype);
      if (neon_alone() || gemm.isa > Isa::neon) enabled.push_back(&gemm);
    }
    return enabled;
  }
  enabled.push_back(&kEmulatedAmx);
  for (const GemmKernel* gemm : table<GemmKernel>()) {
    if (isa_enabled(gemm->isa)) enabled.push_back(gemm);
    else MESSAGE("skipped ", std::string(gemm->name), ": ", why_disabled(gemm->isa));
  }
  return enabled;
}

/// Kernels that a program brings beside the library's (add_kernel): the lessons'.
inline std::vector<const ConvKernel*> added_engines() {
  const auto all = table<ConvKernel>();
  const auto reference = std::ranges::find(all, &conv_kernel("reference"));
  return {reference + 1, all.end()};
}

/// A tile, and what it multiplies: its own dtype or, as so many terms of bf16, f32.
struct Way {
  const GemmKernel* gemm;
  DType dtype;
  int bf16_terms = 0;
};
/// All micro-kernels, and f32 on the best of bf16; on an emulated CPU where it is faster. Added
/// engines use none: each dtype once.
inline std::vector<Way> enabled_ways() {
  std::vector<Way> ways;
  if (!added_engines().empty()) {
    for (DType dtype : {DType::f32, DType::bf16})
      ways.push_back({&select_gemm_kernel(dtype), dtype});
    return ways;
  }
  for (const GemmKernel* gemm : enabled_gemms()) ways.push_back({gemm, gemm->a});
  const GemmKernel& bf16 = select_gemm_kernel(DType::bf16);
  if (!kEmulatedCpu || bf16.isa > Isa::neon) ways.push_back({&bf16, DType::f32, 1});
  if (!kEmulatedCpu) ways.push_back({&bf16, DType::f32, 2});
  return ways;
}

/// The given ones; of each dtype the first where there are added engines, to which they are alike.
inline std::vector<Way> different(std::vector<Way> ways) {
  if (added_engines().empty()) return ways;
  std::vector<Way> first;
  for (const Way& way : ways)
    if (std::ranges::count(first, way.dtype, &Way::dtype) == 0) first.push_back(way);
  return first;
}

/// Is it one of those that the library's engine takes, by shape, types and tile alone?
inline bool must_take(std::string_view engine, const ConvProblem& p, ConvPass pass,
                      const GemmKernel& gemm) {
  if (engine == "brgemm" || engine == "reference") return true;
  if (engine == "depthwise") {
    const int64_t inputs = p.ic / p.groups, outputs = p.oc / p.groups;
    const bool few = inputs <= 8 && outputs <= 8 && (p.dilation_h == 1 || p.kh == 1);
    const bool of_loops = inputs == 1 || inputs == 2 || inputs == 4 || inputs == 8 ||
                          (inputs == 16 && p.stride_w > 1 && gemm.run_strip == nullptr &&
                           isa_enabled(p.dtype == DType::bf16 ? Isa::avx512_bf16 : Isa::avx512));
    return p.groups > 1 && p.dtype != DType::f64 && (few || (inputs == outputs && of_loops));
  }
  if (engine == "kn2row")
    return pass != ConvPass::wgrad && p.groups == 1 && gemm.a == p.dtype &&
           (pass == ConvPass::forward ? p.oc : p.ic) <= 4;
  const bool of_3x3 = p.kh == 3 && p.kw == 3 && p.stride_h == 1 && p.stride_w == 1 &&
                      p.dilation_h == 1 && p.dilation_w == 1 && p.groups == 1;
  const bool winograd =
      of_3x3 && p.pad_h <= 2 && p.pad_w <= 2 && p.dtype == DType::f32 && gemm.a == DType::f32;
  if (pass != ConvPass::wgrad) return winograd;
  return winograd && engine == "winograd" && gemm.isa != Isa::portable;  // by outer products
}

/// The engines that can compute it, but for the reference; in a program that brings some, those.
inline std::vector<const ConvKernel*> engines(const ConvProblem& p, ConvPass pass,
                                              const GemmKernel& gemm) {
  std::vector<const ConvKernel*> added = added_engines();
  std::erase_if(added, [&](auto* engine) { return engine->why_not(p, pass, gemm) != nullptr; });
  if (!added.empty()) return added;
  std::vector<const ConvKernel*> all{&conv_kernel("brgemm")};
  const ConvKernel& depthwise = conv_kernel("depthwise");
  if (!depthwise.why_not(p, pass, gemm)) all.push_back(&depthwise);
  if (!why_kn2row_cannot(p, pass, gemm)) all.push_back(&conv_kernel("kn2row"));
  if (!why_winograd_cannot(p, pass, gemm)) {
    all.push_back(&conv_kernel("winograd"));
    if (pass != ConvPass::wgrad) all.push_back(&conv_kernel("winograd_4x4"));
  }
  for (const char* name : {"depthwise", "kn2row", "winograd", "winograd_4x4"})
    if (must_take(name, p, pass, gemm))
      CHECK_MESSAGE(std::ranges::count(all, &conv_kernel(name)) == 1, name, " refuses ",
                    p.to_string());
  return all;
}

/// w, of the problem's dtype, as the plan reads it; checks that nothing outside is written.
inline Buffer packed_weight(const ConvPlan& plan, Buffer& w) {
  Buffer packed(DType::u8, plan.packed_bytes());
  plan.pack(w.data(), plan.problem.dtype, packed.data());
  CHECK(packed.guarded());
  return packed;
}

/// How far results of integers may be from exact ones, which differ by at least a half: F(4×4, 3×3)
/// has thirds in its matrices.
inline double tolerance(const ConvKernel& engine) {
  const std::string_view name = engine.name;
  return name == "winograd_4x4" || name == "lesson_conv_7" ? 1.0 / 64 : 0;
}
inline bool agree(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](double x, double y) { return std::abs(x - y) <= tolerance; });
}

inline constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

/// Calls f with each case in both formats; on an emulated CPU, and with added engines, of which
/// there are many, in one, in turn. On an emulated CPU that has more than Neon, whose tiles alone
/// are new, with every second pair of cases.
template <class F>
void each_case(F f) {
  const bool in_turn = kEmulatedCpu || !added_engines().empty();
  const bool seldom = kEmulatedCpu && !neon_alone();
  for (size_t i = 0; i < kCases.size(); ++i)
    for (size_t format : {0u, 1u})
      if (!in_turn || (i % 2 == format && !(seldom && i % 4 > 1))) f(kCases[i], kFormats[format]);
}

}  // namespace quern::test
