// 2-D convolution and its two gradients, on raw pointers.
//
// The way of a call, from the API to the tile and back:
//
// 1. ops/conv2d.cpp checks the arguments and makes a ConvProblem; plan_conv() (conv.cpp) takes the
//    first ConvKernel that has no reason to refuse: depthwise (depthwise/conv_depthwise.cpp, a
//    filter for each channel, or groups of few channels), winograd_4x4 or winograd
//    (winograd/conv_winograd.cpp, 3×3 filters in f32), brgemm, which the rest of this list is
//    about, else the reference (conv_reference.cpp), the seven loops that are also the oracle of
//    the tests.
// 2. taps/conv_brgemm.cpp turns the problem into taps: an output pixel is a sum over taps of source
//    pixel · weight. axis.h tells which source pixel a tap reads, for any stride, padding and
//    dilation.
// 3. taps/blocking.cpp cuts it into cells for the threads, and these into runs of output pixels;
//    taps/engine.cpp runs it: a block of the source is copied to a zero-padded scratch in which
//    each tap is an offset (source_block.h), or read where it lies; the weight is packed in panels
//    (taps/weight.cpp; kept between calls by ops/pack_cache.h). Here f32 becomes bf16 if
//    float32_matmul_precision asks for it (ConvPlan::bf16_terms).
// 4. For each tile of output pixels and channels one call of the batch-reduce GEMM micro-kernel
//    (gemm/gemm_kernel.h) adds up the products of all taps and completes the tile
//    (kernels/epilogue.h).
// 5. Backward, the closure that conv2d recorded asks for dgrad, the gradient of x: steps 2 to 4
//    with dy as the source and other taps, one set for each remainder of a pixel modulo the stride;
//    and for wgrad, the gradient of the weight (wgrad/outer.cpp where channels are innermost, else
//    wgrad/transposed.cpp; winograd/wgrad.cpp): the same micro-kernel summing over pixels instead
//    of channels.
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

/// A pass of a problem and what runs it.
struct ConvPlan {
  ConvProblem problem;
  ConvPass pass;
  const ConvKernel* kernel;
  const GemmKernel* gemm;  // the tile under conv_brgemm
  /// Not 0: a problem of f32 on a tile of bf16, to which so many terms go (pack/bf16_terms.h).
  /// Operands become bf16 where they are packed or copied to scratch; sums, outputs and all else
  /// stay f32.
  int bf16_terms = 0;

  std::string name()
      const;  ///< "brgemm:gemm_f32_f32_f32_14x32_avx512", "brgemm_bf16x3:...", "reference"
  double saving() const { return kernel->saving ? kernel->saving(problem, pass) : 1; }
  int64_t wanted_gap() const { return kernel->wanted_gap ? kernel->wanted_gap(*this) : 0; }
  int64_t packed_bytes() const { return kernel->packed_bytes(*this); }
  void pack(const void* weight, void* packed) const { kernel->pack(*this, weight, packed); }
};

/// The best kernel for it, on the best tile or on `gemm`; bf16_terms as in ConvPlan.
ConvPlan plan_conv(const ConvProblem& problem, ConvPass pass, const GemmKernel* gemm = nullptr,
                   int bf16_terms = 0);

// `packed` is what plan.pack() made, or the weight itself where packed_bytes() is 0.

// Each may do more on the way (kernels/epilogue.h): x is read through `prologue` where that has a
// scale, sums leave through `epilogue`.

/// y = conv(x, weight)
void conv_forward(const ConvPlan& plan, const void* x, const void* packed, void* y,
                  const Epilogue& epilogue = {}, const ChannelMap& prologue = {});
void conv_dgrad(const ConvPlan& plan, const void* dy, const void* packed, void* dx,
                const Epilogue& epilogue = {});
/// dw is written as [oc, ic/groups, kh, kw] in f32 (f64 for f64).
void conv_wgrad(const ConvPlan& plan, const void* x, const void* dy, void* dw,
                const ChannelMap& prologue = {});

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
