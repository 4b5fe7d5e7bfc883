// What convolutions do besides (fusion.h), on every micro-kernel that this machine runs, against the
// reference in f64.
//
// Data are small integers, scales multiples of a half: all products and sums are exact in f32, so that
// results must be equal, rounded once for bf16.
#include <doctest/doctest.h>

#include <vector>

#include "conv_cases.h"
#include "quern/ops/kernels/conv/conv_records.h"
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
                                 const GemmKernel& gemm) {
  Buffer x(p.dtype, integers(p.n * p.ic * p.ih * p.iw, 1));
  Buffer dy(p.dtype, integers(p.n * p.oc * p.oh * p.ow, 4));
  Buffer dw(sum_dtype(p.dtype), p.oc * p.ic / p.groups * p.kh * p.kw);
  const Norm norm(p.ic);
  Buffer scale(sum_dtype(p.dtype), norm.scale), shift(sum_dtype(p.dtype), norm.shift);
  conv_wgrad({p, ConvPass::wgrad, &kernel, &gemm}, x.data(), dy.data(), dw.data(),
             {.scale = scale.data(), .shift = shift.data()});
  CHECK(dw.guarded());
  return dw.values();
}

}  // namespace

TEST_CASE("The gradient of the weight reads x through its map") {
  const auto gemms = enabled_gemms();
  for (const Case& c : kCases) {
    for (MemoryFormat format : kFormats) {
      const std::vector<double> expected = mapped_wgrad(
          c.problem(DType::f64, format), conv_reference, select_gemm_kernel(DType::f64));
      for (const GemmKernel* gemm : gemms) {
        const ConvProblem p = c.problem(gemm->a, format);
        CAPTURE(p.to_string());
        CAPTURE(p.format);
        CAPTURE(std::string(gemm->name));
        CHECK(mapped_wgrad(p, conv_brgemm, *gemm) == expected);
      }
    }
  }
}
