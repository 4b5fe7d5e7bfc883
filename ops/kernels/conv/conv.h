// 2-D convolution and its two gradients, on raw pointers.
//
// The way of a call, from the API to the tile and back:
//
// 1. ops/conv2d.cpp checks the arguments and makes a ConvProblem; ops/detail/conv_problem.cpp finds
//    its plan and its packed weight (ops/pack_cache.h), both kept between calls, and runs it. Rows
//    and columns of a filter that only meet padding are cut off before (live_taps.h).
// 2. choose_conv() (conv.cpp) takes the first ConvKernel that has no reason to refuse: depthwise
//    (depthwise/conv_depthwise.cpp, filters of each channel alone, or groups of few channels),
//    kn2row (kn2row/conv_kn2row.cpp, few channels on the side of the output), winograd_4x4 or
//    winograd (winograd/conv_winograd.cpp, 3×3 filters in f32), brgemm, which the rest of this list
//    is about, else the reference (conv_reference.cpp), the seven loops that are also the oracle of
//    the tests.
// 3. Its plan, taps/conv_brgemm.cpp, turns the problem into taps: an output pixel is a sum over
//    taps of source pixel · weight. axis.h tells which source pixel a tap reads, for any stride,
//    padding and dilation. It is cut into cells for the threads, and these into runs of output
//    pixels. taps/engine.cpp runs it: a block of the source is copied to a zero-padded scratch in
//    which each tap is an offset (blocks.h), or read where it lies; the weight is packed in panels
//    (taps/weight.cpp). Here f32 becomes bf16 if float32_matmul_precision asks for it
//    (ConvChoice::bf16_terms).
// 4. For each tile of output pixels and channels one call of the batch-reduce GEMM micro-kernel
//    (gemm/gemm_kernel.h) adds up the products of all taps and completes the tile
//    (kernels/epilogue.h). On AMX, whose products take less time than what they read and write,
//    taps/strips.cpp runs the plan instead: a strip of pixels meets all panels in one call, and
//    each tile is completed while the next is multiplied (gemm/strip.h).
// 5. Backward, the closure that conv2d recorded asks for dgrad, the gradient of x: steps 1 to 4
//    with dy as the source and other taps, one set for each remainder of a pixel modulo the stride;
//    and for wgrad, the gradient of the weight (wgrad/outer.cpp where the micro-kernel runs on
//    outer products, else wgrad/transposed.cpp; winograd/wgrad.cpp): the same micro-kernel summing
//    over pixels instead of channels.
//
// Around them: kernels/work.h cuts work into cells by shape alone; kernels/pack has the vector
// loops under every copy; conv_bias_grad.cpp sums dy.
//
// Layouts: x, y and their gradients are in the problem's format, weight and dw are
// [oc, ic/groups, kh, kw].
#pragma once
#include "quern/ops/kernels/conv/conv_kernel.h"
#include "quern/ops/kernels/table.h"

namespace quern::kernels {

/// The one of this name.
const ConvKernel& conv_kernel(std::string_view name);

/// A pass of a problem and what is to run it.
struct ConvChoice {
  ConvProblem problem;
  ConvPass pass;
  const ConvKernel* kernel;
  const GemmKernel* gemm;  // the tile under conv_brgemm
  /// Not 0: a problem of f32 on a tile of bf16, to which so many terms go (pack/bf16_terms.h).
  /// Operands become bf16 where they are packed or copied to scratch; sums, outputs and all else
  /// stay f32.
  int bf16_terms = 0;

  /// "brgemm:gemm_f32_f32_f32_14x32_avx512", "brgemm_bf16x3:...", "reference"
  std::string name() const;
  double saving() const { return kernel->saving ? kernel->saving(problem, pass) : 1; }
};

/// The best kernel for it, on the best tile or on `gemm`.
ConvChoice choose_conv(const ConvProblem& problem, ConvPass pass, const GemmKernel* gemm = nullptr,
                       int bf16_terms = 0);

/// All that can be decided without the operands: taps, blocking, sizes of what is packed and
/// copied. Made once a problem and kept (ops/detail/conv_problem.h); any thread may run it. What a
/// kernel decides are the members of its own plan: TapPlan (taps/taps.h), WinogradPlan, ...
class ConvPlan : public ConvChoice {
 public:
  virtual ~ConvPlan() = default;
  ConvPlan(const ConvPlan&) = delete;
  ConvPlan& operator=(const ConvPlan&) = delete;

  /// Size of the packed weight that forward and dgrad read.
  virtual int64_t packed_bytes() const { return 0; }
  /// Packs a weight of the problem's dtype, or one of f32 for a problem of bf16, which is rounded.
  virtual void pack(const void* /*weight*/, DType /*of_weight*/, void* /*packed*/) const {}
  /// The x_gap with which forward would read x where it lies, and not a copy with padding.
  virtual int64_t wanted_gap() const { return 0; }

  /// forward: y = conv(x, weight)         run(x, weight, y)
  /// dgrad: dx, of what dy is of y        run(dy, weight, dx)
  /// wgrad: dw [oc, ic/groups, kh, kw]    run(x, dy, dw)
  /// The weight is what pack() made of it. Pointers are to the problem's dtype, dw to f32 (f64 for
  /// f64). x of forward and wgrad is read through
  /// `prologue` where that has a scale; sums of forward and dgrad leave through `epilogue`
  /// (kernels/epilogue.h), as the problem's maps and sums announced.
  void run(const void* from, const void* with, void* to, const Epilogue& epilogue = {},
           const ChannelMap& prologue = {}) const;

  /// Of dgrad: is there run_both()?
  virtual bool differentiates_at_once() const { return false; }
  /// dgrad and wgrad in one pass over x, dy and dx. x is that of the epilogue, which stores, or
  /// takes the gradient through the map by which wgrad, too, reads x.
  void run_both(const void* dy, const void* weight, void* dx, void* dw,
                const Epilogue& epilogue) const;

 protected:
  explicit ConvPlan(const ConvChoice& choice);

 private:
  friend class LiveTapsPlan;  // runs another
  virtual void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
                       const ChannelMap& prologue) const = 0;
  virtual void compute_both(const void* /*dy*/, const void* /*weight*/, void* /*dx*/, void* /*dw*/,
                            const Epilogue&) const {}

  const std::string kernel_text_, problem_text_, formats_text_;  // for spans
};

/// ConvKernel::plan of a kernel whose plans are of this type.
template <class Plan>
std::unique_ptr<const ConvPlan> make_conv_plan(const ConvChoice& choice) {
  return std::make_unique<const Plan>(choice);
}
inline std::unique_ptr<const ConvPlan> plan_conv(const ConvChoice& choice) {
  return choice.kernel->plan(choice);
}

/// y = activation(sum + shift + residual), any of them left out: null, none.
inline Epilogue activate(const void* shift, const void* residual = nullptr,
                         Activation activation = Activation::none) {
  const bool any = shift != nullptr || residual != nullptr || activation != Activation::none;
  return {.kind = any ? Epilogue::Kind::activate : Epilogue::Kind::store,
          .activation = activation,
          .map = {.shift = shift},
          .residual = residual};
}

/// db[oc] = Σ dy over images and pixels, in f32 (f64 for f64).
void conv_bias_grad(const ConvProblem& problem, const void* dy, void* db);

}  // namespace quern::kernels
