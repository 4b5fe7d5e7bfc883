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

inline const std::vector<Case> kCases{
    // 1×1: linearised, copied for odd channels, strided
    {.n = 2, .groups = 1, .ic = 32, .oc = 33, .size = {7, 7}, .kernel = {1, 1}},
    {.name = "1×1, odd", .n = 3, .groups = 1, .ic = 17, .oc = 5, .size = {5, 9}, .kernel = {1, 1}},
    {.n = 2, .groups = 1, .ic = 64, .oc = 65, .size = {9, 8}, .kernel = {1, 1}, .stride = {2, 2}},
    {.n = 1, .groups = 1, .ic = 16, .oc = 16, .size = {3, 3}, .kernel = {1, 1}, .pad = {1, 2}},
    {.n = 1, .groups = 1, .ic = 1, .oc = 1, .size = {1, 1}, .kernel = {1, 1}},
    // channels that collide in a cache set
    {.n = 1, .groups = 1, .ic = 1024, .oc = 3, .size = {3, 5}, .kernel = {1, 1}},
    // more pixels than an AMX tile takes at a time for the gradient of the weight
    {.n = 1, .groups = 1, .ic = 16, .oc = 2, .size = {20, 25}, .kernel = {1, 1}},
    {.n = 1, .groups = 1, .ic = 16, .oc = 2, .size = {27, 28}, .kernel = {3, 3}, .pad = {1, 1}},
    // 3×3, even and odd everything
    {.name = "3×3, odd",
     .n = 2,
     .groups = 1,
     .ic = 33,
     .oc = 65,
     .size = {7, 7},
     .kernel = {3, 3},
     .pad = {1, 1}},
    {.n = 1, .groups = 1, .ic = 16, .oc = 32, .size = {14, 28}, .kernel = {3, 3}, .pad = {1, 1}},
    {.n = 2, .groups = 1, .ic = 16, .oc = 17, .size = {8, 9}, .kernel = {3, 3}},
    {.name = "3×3, stride 2",
     .n = 2,
     .groups = 1,
     .ic = 18,
     .oc = 3,
     .size = {9, 11},
     .kernel = {3, 3},
     .stride = {2, 2},
     .pad = {1, 1}},
    {.name = "3×3, stride 3",
     .n = 1,
     .groups = 1,
     .ic = 17,
     .oc = 33,
     .size = {10, 13},
     .kernel = {3, 3},
     .stride = {3, 3},
     .pad = {1, 1}},
    {.n = 1, .groups = 1, .ic = 17, .oc = 16, .size = {11, 7}, .kernel = {2, 2}, .stride = {3, 4}},
    {.n = 1,
     .groups = 1,
     .ic = 17,
     .oc = 5,
     .size = {12, 13},
     .kernel = {5, 3},
     .stride = {1, 2},
     .pad = {2, 1}},
    {.n = 1,
     .groups = 1,
     .ic = 16,
     .oc = 33,
     .size = {13, 12},
     .kernel = {3, 3},
     .pad = {2, 2},
     .dilation = {2, 2}},
    {.name = "3×3, strides and dilations",
     .n = 1,
     .groups = 1,
     .ic = 20,
     .oc = 5,
     .size = {13, 15},
     .kernel = {3, 3},
     .stride = {2, 3},
     .pad = {3, 1},
     .dilation = {3, 2}},
    {.n = 1,
     .groups = 1,
     .ic = 20,
     .oc = 5,
     .size = {13, 15},
     .kernel = {3, 2},
     .stride = {2, 2},
     .pad = {1, 3},
     .dilation = {2, 4}},
    // taps that reach far into the padding, from few outputs of a row; from rows that scratch has
    // no room for
    {.name = "3×3, dilation 12",
     .n = 1,
     .groups = 1,
     .ic = 16,
     .oc = 33,
     .size = {9, 28},
     .kernel = {3, 3},
     .pad = {2, 12},
     .dilation = {2, 12}},
    {.name = "3×3, rows apart",
     .n = 2,
     .groups = 1,
     .ic = 1040,
     .oc = 5,
     .size = {9, 8},
     .kernel = {3, 3},
     .pad = {5, 6},
     .dilation = {6, 6}},
    // padding beyond need: outputs and taps that read nothing but padding
    {.n = 1, .groups = 1, .ic = 17, .oc = 5, .size = {3, 4}, .kernel = {3, 3}, .pad = {5, 4}},
    {.n = 1,
     .groups = 1,
     .ic = 3,
     .oc = 5,
     .size = {2, 3},
     .kernel = {3, 3},
     .stride = {2, 2},
     .pad = {4, 7}},
    {.n = 1,
     .groups = 1,
     .ic = 16,
     .oc = 2,
     .size = {1, 1},
     .kernel = {1, 1},
     .stride = {2, 2},
     .pad = {1, 1}},
    // few channels: a row of taps in k
    {.name = "stem",
     .n = 2,
     .groups = 1,
     .ic = 3,
     .oc = 33,
     .size = {18, 20},
     .kernel = {7, 7},
     .stride = {2, 2},
     .pad = {3, 3}},
    {.n = 1, .groups = 1, .ic = 1, .oc = 5, .size = {9, 10}, .kernel = {3, 3}, .pad = {1, 1}},
    {.n = 1,
     .groups = 1,
     .ic = 5,
     .oc = 17,
     .size = {9, 11},
     .kernel = {3, 4},
     .stride = {1, 3},
     .pad = {0, 2}},
    {.n = 1,
     .groups = 1,
     .ic = 5,
     .oc = 3,
     .size = {9, 11},
     .kernel = {3, 3},
     .pad = {2, 2},
     .dilation = {1, 2}},
    // groups, depthwise
    {.name = "2 groups",
     .n = 2,
     .groups = 2,
     .ic = 34,
     .oc = 66,
     .size = {6, 7},
     .kernel = {3, 3},
     .pad = {1, 1}},
    {.name = "3 groups, stride 2",
     .n = 1,
     .groups = 3,
     .ic = 9,
     .oc = 15,
     .size = {7, 6},
     .kernel = {3, 3},
     .stride = {2, 2},
     .pad = {1, 1}},
    {.n = 2, .groups = 2, .ic = 64, .oc = 32, .size = {5, 5}, .kernel = {1, 1}},
    {.n = 1, .groups = 19, .ic = 19, .oc = 19, .size = {8, 7}, .kernel = {3, 3}, .pad = {1, 1}},
    {.n = 2, .groups = 67, .ic = 67, .oc = 67, .size = {14, 15}, .kernel = {3, 3}, .pad = {1, 1}},
    {.n = 3, .groups = 2, .ic = 2, .oc = 2, .size = {9, 18}, .kernel = {5, 5}, .pad = {2, 2}},
    {.n = 2,
     .groups = 33,
     .ic = 33,
     .oc = 33,
     .size = {13, 16},
     .kernel = {5, 5},
     .stride = {2, 2},
     .pad = {2, 2}},
    {.n = 1,
     .groups = 20,
     .ic = 20,
     .oc = 20,
     .size = {10, 11},
     .kernel = {4, 3},
     .stride = {3, 2},
     .pad = {1, 0}},
    {.n = 2,
     .groups = 18,
     .ic = 18,
     .oc = 18,
     .size = {15, 14},
     .kernel = {3, 3},
     .pad = {3, 2},
     .dilation = {1, 3}},
    {.n = 1,
     .groups = 17,
     .ic = 17,
     .oc = 17,
     .size = {12, 17},
     .kernel = {3, 5},
     .stride = {1, 2},
     .pad = {2, 4},
     .dilation = {2, 2}},
    {.n = 2, .groups = 40, .ic = 40, .oc = 40, .size = {4, 3}, .kernel = {7, 7}, .pad = {3, 4}},
    {.name = "groups of few channels",
     .n = 2,
     .groups = 9,
     .ic = 36,
     .oc = 36,
     .size = {9, 17},
     .kernel = {3, 3},
     .pad = {1, 1}},
    {.n = 1, .groups = 3, .ic = 6, .oc = 6, .size = {5, 6}, .kernel = {3, 3}, .pad = {1, 1}},
    {.n = 2,
     .groups = 5,
     .ic = 40,
     .oc = 40,
     .size = {8, 30},
     .kernel = {3, 2},
     .stride = {2, 2},
     .pad = {1, 2},
     .dilation = {1, 2}},
    {.n = 2, .groups = 16, .ic = 16, .oc = 16, .size = {1, 14}, .kernel = {1, 5}, .pad = {0, 2}},
    {.n = 2, .groups = 35, .ic = 35, .oc = 35, .size = {21, 13}, .kernel = {7, 1}, .pad = {3, 0}},
    {.n = 1, .groups = 3, .ic = 3, .oc = 3, .size = {11, 33}, .kernel = {2, 9}, .pad = {1, 1}},
    // rows of the source that are no output's: stride beyond the kernel
    {.n = 1, .groups = 24, .ic = 24, .oc = 24, .size = {9, 9}, .kernel = {1, 1}, .stride = {2, 3}},
    {.n = 1,
     .groups = 5,
     .ic = 5,
     .oc = 10,
     .size = {8, 9},
     .kernel = {3, 3},
     .stride = {2, 1},
     .pad = {1, 1}},
    // kernel = input, one column
    {.n = 2, .groups = 1, .ic = 17, .oc = 9, .size = {5, 4}, .kernel = {5, 4}},
    {.n = 2, .groups = 1, .ic = 16, .oc = 9, .size = {12, 3}, .kernel = {3, 3}},
    {.n = 1, .groups = 1, .ic = 16, .oc = 9, .size = {9, 1}, .kernel = {3, 1}, .pad = {1, 0}},
    {.n = 2, .groups = 1, .ic = 64, .oc = 33, .size = {6, 3}, .kernel = {3, 1}, .pad = {1, 0}},
    {.n = 1, .groups = 1, .ic = 16, .oc = 9, .size = {1, 40}, .kernel = {1, 5}, .pad = {0, 2}},
    // reductions, blocks of rows and images larger than a cache
    {.n = 5, .groups = 1, .ic = 560, .oc = 3, .size = {4, 4}, .kernel = {3, 3}, .pad = {1, 1}},
    {.name = "3×3, larger than a cache",
     .n = 2,
     .groups = 1,
     .ic = 40,
     .oc = 2,
     .size = {70, 64},
     .kernel = {3, 3},
     .pad = {1, 1}},
    {.n = 2,
     .groups = 1,
     .ic = 72,
     .oc = 72,
     .size = {9, 9},
     .kernel = {3, 3},
     .stride = {2, 2},
     .pad = {1, 1}},
    // 3×3 by tiles: cells that share a block, outputs beyond the input
    {.name = "3×3, cells that share a block",
     .n = 1,
     .groups = 1,
     .ic = 34,
     .oc = 40,
     .size = {9, 9},
     .kernel = {3, 3},
     .pad = {1, 1}},
    {.n = 3, .groups = 1, .ic = 35, .oc = 34, .size = {5, 2}, .kernel = {3, 3}, .pad = {2, 2}},
    {.n = 1, .groups = 1, .ic = 9, .oc = 7, .size = {1, 600}, .kernel = {3, 3}, .pad = {1, 0}},
    // gradients of filters cut by both channels
    {.n = 2, .groups = 1, .ic = 100, .oc = 70, .size = {6, 5}, .kernel = {3, 3}, .pad = {1, 1}},
    // more rows than are summed up in f32, in whole panels of either pass
    {.n = 2, .groups = 1, .ic = 32, .oc = 64, .size = {14, 21}, .kernel = {1, 1}},
};

inline const Case& case_of(std::string_view name) {
  const auto found = std::ranges::find(kCases, name, &Case::name);
  REQUIRE(found != kCases.end());
  return *found;
}

/// -3 ... 3, exact in every dtype.
inline std::vector<double> integers(int64_t count, uint32_t seed) {
  std::vector<double> values(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 1;
  for (double& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<double>(state >> 16) / 65536 * 7;
    value = std::floor(value) - 3;
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

/// Those that this machine runs, and the AMX kernel on emulated tiles; on an emulated CPU those
/// that it takes and one with Neon alone does not.
inline std::vector<const GemmKernel*> enabled_gemms() {
  std::vector<const GemmKernel*> enabled;
  if (kEmulatedCpu) {
    const bool neon_alone = !isa_enabled(Isa::neon_bf16) && !isa_enabled(Isa::sve);
    for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const GemmKernel& gemm = select_gemm_kernel(dtype);
      if (neon_alone || gemm.isa > Isa::neon) enabled.push_back(&gemm);
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

/// A tile, and what it multiplies: its own dtype or, as so many terms of bf16, f32.
struct Way {
  const GemmKernel* gemm;
  DType dtype;
  int bf16_terms = 0;
};
/// All micro-kernels, and f32 on the best of bf16; on an emulated CPU where it is faster.
inline std::vector<Way> enabled_ways() {
  std::vector<Way> ways;
  for (const GemmKernel* gemm : enabled_gemms()) ways.push_back({gemm, gemm->a});
  const GemmKernel& bf16 = select_gemm_kernel(DType::bf16);
  if (!kEmulatedCpu || bf16.isa > Isa::neon) ways.push_back({&bf16, DType::f32, 1});
  if (!kEmulatedCpu) ways.push_back({&bf16, DType::f32, 2});
  return ways;
}

/// The engines that can compute it, but for the reference.
inline std::vector<const ConvKernel*> engines(const ConvProblem& p, ConvPass pass,
                                              const GemmKernel& gemm) {
  std::vector<const ConvKernel*> all{&conv_kernel("brgemm")};
  const ConvKernel& depthwise = conv_kernel("depthwise");
  if (!depthwise.why_not(p, pass, gemm)) all.push_back(&depthwise);
  if (why_winograd_cannot(p, pass, gemm)) return all;
  all.push_back(&conv_kernel("winograd"));
  if (pass != ConvPass::wgrad) all.push_back(&conv_kernel("winograd_4x4"));
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
  return &engine == &conv_kernel("winograd_4x4") ? 1.0 / 64 : 0;
}
inline bool agree(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](double x, double y) { return std::abs(x - y) <= tolerance; });
}

inline constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

/// Calls f with each case in both formats; on an emulated CPU in one, in turn.
template <class F>
void each_case(F f) {
  for (size_t i = 0; i < kCases.size(); ++i)
    for (size_t format : {0u, 1u})
      if (!kEmulatedCpu || i % 2 == format) f(kCases[i], kFormats[format]);
}

}  // namespace quern::test
