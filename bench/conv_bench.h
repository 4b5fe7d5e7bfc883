// One pass of one convolution as a benchmark; for the benchmarks and for the summary of a network.
#pragma once
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/gemm/micro_kernel.h"
#include "suite.h"

namespace quern::bench {

struct ConvShape {
  int64_t count;  // in the network
  kernels::ConvProblem problem;
};

/// The shapes of the file, at the batch of the options. Error: a line that is none.
std::vector<ConvShape> read_conv_shapes(const Options&, DType, MemoryFormat);

/// One convolution for each size of an output.
std::vector<kernels::ConvProblem> read_conv_outputs(const Options&);

/// "1x1 64->256 @56", with "/2" of a stride.
std::string short_shape(const kernels::ConvProblem&);

/// Whether training asks for it, which needs no gradient of images, and the kernel takes it.
inline bool is_needed(const kernels::ConvChoice& choice) {
  return (choice.pass != kernels::ConvPass::dgrad || choice.problem.ic != 3) &&
         !choice.kernel->why_not(choice.problem, choice.pass, *choice.gemm);
}

/// A conv kernel on a tile; no kernel: the one that dispatch takes for the problem.
struct ConvWay {
  const kernels::ConvKernel* kernel;
  const kernels::GemmKernel* gemm;
  int bf16_terms = 0;

  DType dtype() const { return bf16_terms == 0 ? gemm->a : DType::f32; }
  kernels::ConvChoice choice(const kernels::ConvProblem& problem, kernels::ConvPass pass) const {
    if (!kernel) return kernels::choose_conv(problem, pass, gemm);
    return {problem, pass, kernel, gemm, bf16_terms};
  }
};

/// Calls f(ConvWay) on those that the options ask for: every kernel on every tile where that is all
/// of them, and f32 as terms of bf16 on the best of those; else dispatch's on the wanted tiles. A
/// kernel without tiles ignores its.
template <class F>
void each_conv_way(const Options& options, DType dtype, F f) {
  using namespace kernels;
  const GemmKernel& best = select_gemm_kernel(dtype);
  const bool all = options.wants("", false);
  each_wanted(
      options, table<GemmKernel>(), best, [&](const GemmKernel& gemm) { return gemm.a == dtype; },
      [&](const GemmKernel& gemm) {
        if (!all) return f(ConvWay{nullptr, &gemm});
        for (const ConvKernel* kernel : table<ConvKernel>())
          if (kernel != &conv_kernel("reference")) f(ConvWay{kernel, &gemm});
      });
  if (all && dtype == DType::f32)
    for (int terms : {1, 2})
      f(ConvWay{&conv_kernel("brgemm"), &select_gemm_kernel(DType::bf16), terms});
  if (options.wants("conv_reference", false)) f(ConvWay{&conv_kernel("reference"), &best});
}

/// `both`: dgrad and wgrad at once, of a choice of dgrad.
Benchmark conv_benchmark(const Options&, const kernels::ConvChoice&, bool both = false);

/// `fused`: with what training's chains of convolutions ask for besides (kernels/epilogue.h).
std::unique_ptr<Case> conv_case(const kernels::ConvChoice&, bool fused, bool both = false);

}  // namespace quern::bench
