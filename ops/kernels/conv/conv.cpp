#include "quern/ops/kernels/conv/conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/verbose.h"

namespace quern::kernels {
namespace {

const char* verbose_name(ConvPass pass) {
  constexpr std::array names{"conv2d_fwd", "conv2d_dgrad", "conv2d_wgrad"};
  return names[static_cast<size_t>(pass)];
}

/// Of the taps along an axis. Tap r of output i reads pixel i·stride + r·dilation - pad: the last
/// output before the first pixel, the first output beyond the last one, and all others do.
Extent live_taps(int64_t pixels, int64_t outputs, int64_t taps, int64_t stride, int64_t pad,
                 int64_t dilation) {
  const int64_t before = pad - (outputs - 1) * stride;  // of the first pixel, for tap 0
  const int64_t begin = before > 0 ? ceil_div(before, dilation) : 0;
  const int64_t end = std::min(taps, ceil_div(pixels + pad, dilation));
  // A problem has no negative padding, and at least one tap.
  if (begin >= end || begin * dilation > pad) return {0, taps};
  return {begin, end - begin};
}

}  // namespace

std::string ConvProblem::to_string() const {
  return fmt::format("mb{}_{}ic{}oc{}_ih{}oh{}kh{}sh{}dh{}ph{}_iw{}ow{}kw{}sw{}dw{}pw{}", n,
                     groups == 1 ? "" : fmt::format("g{}", groups), ic, oc, ih, oh, kh, stride_h,
                     dilation_h - 1, pad_h, iw, ow, kw, stride_w, dilation_w - 1, pad_w);
}

int64_t ConvProblem::flop() const { return 2 * n * oc * oh * ow * (ic / groups) * kh * kw; }

int64_t ConvProblem::bytes() const {
  const int64_t x = n * ic * ih * iw, y = n * oc * oh * ow, weight = oc * (ic / groups) * kh * kw;
  return (x + y + weight) * itemsize(dtype);
}

LiveTaps ConvProblem::live_taps() const {
  return {kernels::live_taps(ih, oh, kh, stride_h, pad_h, dilation_h),
          kernels::live_taps(iw, ow, kw, stride_w, pad_w, dilation_w)};
}

ConvProblem ConvProblem::with_live_taps() const {
  const auto [rows, columns] = live_taps();
  ConvProblem live = *this;
  live.kh = rows.size, live.pad_h -= rows.begin * dilation_h;
  live.kw = columns.size, live.pad_w -= columns.begin * dilation_w;
  return live;
}

const ConvKernel& conv_kernel(std::string_view name) {
  for (const ConvKernel* kernel : table<ConvKernel>())
    if (kernel->name == name) return *kernel;
  fail("conv2d", fmt::format("no kernel is named {}", name));
}

std::string ConvChoice::name() const {
  if (!kernel->on_micro_kernels) return kernel->name;
  const char* products = bf16_terms == 0 ? "" : bf16_terms == 1 ? "_bf16" : "_bf16x3";
  return fmt::format("{}{}:{}", kernel->name, products, gemm->name);
}

ConvChoice choose_conv(const ConvProblem& problem, ConvPass pass, const GemmKernel* gemm,
                       int bf16_terms) {
  if (!gemm) gemm = &select_gemm_kernel(problem.dtype);
  const ConvKernel* kernel = select<ConvKernel>(
      verbose_name(pass), [](const auto&) { return true; },
      [&](const ConvKernel& record) { return record.why_not(problem, pass, *gemm); });
  if (kernel == nullptr) fail("conv2d", "no kernel takes " + problem.to_string());
  return {problem, pass, kernel, gemm, bf16_terms};
}

ConvPlan::ConvPlan(const ConvChoice& choice)
    : ConvChoice(choice),
      kernel_text_(name()),
      problem_text_(problem.to_string()),
      formats_text_(fmt::format("{}:{}", problem.dtype, problem.format)) {}

void ConvPlan::run(const void* from, const void* with, void* to, const Epilogue& epilogue,
                   const ChannelMap& prologue) const {
  check(problem.maps == (prologue.scale != nullptr) && problem.sums == (epilogue.first != nullptr),
        "conv2d", "plan: expected the prologue and the sums that it was made for");
  VerboseOp line(verbose_name(pass));
  if (line) {
    line.set(kernel_text_, problem_text_, formats_text_);
    line.set_work(problem.flop(), problem.bytes());
  }
  compute(from, with, to, epilogue, prologue);
}

void ConvPlan::run_both(const void* dy, const void* weight, void* dx, void* dw,
                        const Epilogue& epilogue) const {
  check(differentiates_at_once() && epilogue.x && !epilogue.residual &&
            problem.sums == (epilogue.kind == Epilogue::Kind::gradient) &&
            (problem.sums || epilogue.kind == Epilogue::Kind::store),
        "conv2d", "plan: expected x and the epilogue that it was made for");
  VerboseOp line("conv2d_bwd");
  if (line) {
    line.set(kernel_text_, problem_text_, formats_text_);
    line.set_work(2 * problem.flop(), problem.bytes() + problem.n * problem.ic * problem.ih *
                                                            problem.iw * itemsize(problem.dtype));
  }
  compute_both(dy, weight, dx, dw, epilogue);
}

}  // namespace quern::kernels
