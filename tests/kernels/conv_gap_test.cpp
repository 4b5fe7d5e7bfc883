// Convolutions between images whose rows have gaps between them, exactly as between dense ones.
#include <doctest/doctest.h>

#include <vector>

#include "conv_cases.h"
#include "records.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

/// An image tensor with `gap` pixels of `fill` before the first row and after each.
std::vector<double> spaced(const std::vector<double>& dense, int64_t width, int64_t channels,
                           int64_t gap, double fill) {
  std::vector<double> all(static_cast<size_t>(gap * channels), fill);
  const auto row = static_cast<size_t>(width * channels);
  for (auto from = dense.begin(); from != dense.end(); from += static_cast<ptrdiff_t>(row)) {
    all.insert(all.end(), from, from + static_cast<ptrdiff_t>(row));
    all.insert(all.end(), static_cast<size_t>(gap * channels), fill);
  }
  return all;
}

struct Data {
  explicit Data(const ConvProblem& p)
      : x(integers(p.n * p.ic * p.ih * p.iw, 1)),
        w(integers(p.oc * p.ic / p.groups * p.kh * p.kw, 2)) {}
  std::vector<double> x, w;
};

/// y with its gaps, which were sevens before.
std::vector<double> forward(const ConvProblem& p, const ConvKernel& kernel, const GemmKernel& gemm,
                            int bf16_terms, const Data& data) {
  const auto plan = plan_conv({p, ConvPass::forward, &kernel, &gemm, bf16_terms});
  Buffer x(p.dtype, spaced(data.x, p.iw, p.ic, p.x_gap, 0)), w(p.dtype, data.w);
  const std::vector<double> empty(static_cast<size_t>(p.n * p.oh * p.ow * p.oc), 7);
  Buffer y(p.dtype, spaced(empty, p.ow, p.oc, p.y_gap, 7));
  plan->run(x.at(p.x_gap * p.ic), packed_weight(*plan, w).data(), y.at(p.y_gap * p.oc));
  CHECK(y.guarded());
  return y.values();
}

}  // namespace

TEST_CASE("Convolutions read and write rows with gaps between them") {
  const auto ways = enabled_ways();
  for (size_t i = 0; i < kCases.size(); i += kEmulatedCpu ? 3 : 1) {
    const Case& c = kCases[i];
    const ConvProblem exact = c.problem(DType::f64, MemoryFormat::channels_last);
    const Data data(exact);
    const std::vector<double> dense =
        forward(exact, conv_kernel("reference"), select_gemm_kernel(DType::f64), 0, data);
    for (const Way& way : ways) {
      for (const char* name : {"brgemm", "depthwise", "reference"}) {
        const ConvKernel* kernel = &conv_kernel(name);
        if (kernel == &conv_kernel("reference") && way.bf16_terms != 0) continue;
        ConvProblem p = c.problem(way.dtype, MemoryFormat::channels_last);
        if (const char* reason = kernel->why_not(p, ConvPass::forward, *way.gemm)) {
          CHECK_MESSAGE(!must_take(name, p, ConvPass::forward, *way.gemm), reason);
          continue;
        }
        CAPTURE(p.to_string());
        CAPTURE(std::string(way.gemm->name));
        // As wide as the padding, so that A may be the source, or wider; none on one side.
        for (auto [x_gap, y_gap] : {std::pair{c.pad.w, int64_t{0}}, {c.pad.w + 1, 2}, {0, 1}}) {
          p.x_gap = x_gap, p.y_gap = y_gap;
          CHECK(forward(p, *kernel, *way.gemm, way.bf16_terms, data) ==
                spaced(rounded(dense, p.dtype), p.ow, p.oc, y_gap, 7));
        }
      }
    }
  }
}

TEST_CASE("A gap is wanted where it saves the copy with padding, and where tiles fill rows") {
  const GemmKernel& gemm = select_gemm_kernel(DType::f32);
  const auto wanted = [&](int64_t width, int64_t padding, int64_t channels, MemoryFormat format) {
    const Case c{.n = 1,
                 .groups = 1,
                 .ic = channels,
                 .oc = 32,
                 .size = {3, width},
                 .kernel = {3, 3},
                 .stride = {2, 2},
                 .pad = {1, padding}};
    return plan_conv(
               {c.problem(DType::f32, format), ConvPass::forward, &conv_kernel("brgemm"), &gemm})
        ->wanted_gap();
  };
  using enum MemoryFormat;
  CHECK(wanted(4 * gemm.mr, 1, 32, channels_last) == 1);
  CHECK(wanted(4 * gemm.mr, 0, 32, channels_last) == 0);
  CHECK(wanted(4 * gemm.mr + 1, 1, 32, channels_last) == 0);
  CHECK(wanted(4 * gemm.mr, 1, 3, channels_last) == 0);
  CHECK(wanted(4 * gemm.mr, 1, 32, contiguous) == 0);
}
