// 2-D convolution and its two gradients, on raw pointers.
//
// The way of a call, from the API to the tile and back:
//
// 1. ops/conv2d.cpp checks the arguments and makes a ConvProblem; plan_conv() (conv.cpp) takes the
//    first ConvKernel that has no reason to refuse: conv_winograd_4x4 or conv_winograd (winograd.cpp,
//    3×3 filters in f32), conv_brgemm, which the rest of this list is about, else conv_reference, the
//    seven loops that are also the oracle of the tests.
// 2. brgemm.cpp turns the problem into taps: an output pixel is a sum over taps of source pixel ·
//    weight. axis.h tells which source pixel a tap reads, for any stride, padding and dilation.
// 3. brgemm_cut.cpp cuts it into cells for the threads, and these into runs of output pixels;
//    brgemm_taps.cpp runs it: a block of the source is copied to a zero-padded scratch in which
//    each tap is an offset (pack.h), or read where it lies; the weight is packed in panels
//    (brgemm_weight.cpp; kept between calls by ops/pack_cache.h). Here f32 becomes bf16 if
//    float32_matmul_precision asks for it (ConvPlan::bf16_terms).
// 4. For each tile of output pixels and channels one call of the batch-reduce GEMM micro-kernel
//    (gemm/gemm_kernel.h) adds up the products of all taps and finishes the tile (gemm/tile_finish.h).
// 5. Backward, the closure that conv2d recorded asks for dgrad, the gradient of x: steps 2 to 4
//    with dy as the source and other taps, one set for each remainder of a pixel modulo the stride;
//    and for wgrad, the gradient of the weight (brgemm_wgrad_outer.cpp where channels are innermost,
//    else brgemm_wgrad.cpp; winograd_wgrad.cpp): the same micro-kernel summing over pixels instead of
//    channels.
//
// Around them: work.h cuts work into cells by shape alone; copy_kernel.h holds the vector loops
// under pack.h, an instruction set a record; conv_bias_grad.cpp sums dy.
//
// Layouts: x, y and their gradients are in the problem's format, weight and dw are
// [oc, ic/groups, kh, kw].
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "quern/ops/kernels/conv/fusion.h"
#include "quern/ops/kernels/gemm/gemm_kernel.h"
#include "quern/tensor/memory_format.h"

namespace quern::kernels {

struct ConvProblem {
  int64_t n;
  int64_t ic, ih, iw;  // x [n, ic, ih, iw]
  int64_t oc, oh, ow;  // y [n, oc, oh, ow]
  int64_t kh, kw;      // weight [oc, ic/groups, kh, kw]
  int64_t stride_h, stride_w;
  int64_t pad_h, pad_w;
  int64_t dilation_h, dilation_w;
  int64_t groups;
  DType dtype;  // of x, weight and y: f32, bf16 or f64
  MemoryFormat format;
  /// Of forward in channels_last: pixels of memory after each row. Those of x are zeros, as are as many
  /// before its first row.
  int64_t x_gap = 0, y_gap = 0;

  /// "mb16_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1", the field's notation; dh is
  /// dilation_h - 1.
  std::string to_string() const;
};

enum class ConvPass : uint8_t { forward, dgrad, wgrad };

struct ConvPlan;

/// A way to convolve. Pointers are to the problem's dtype; dw to f32 (f64 for f64).
struct ConvKernel {
  const char* name;
  /// Why it does not take the pass of this problem on that tile; null if it does.
  const char* (*why_not)(const ConvProblem&, ConvPass, const GemmKernel&);
  /// Size of the packed weight that forward and dgrad read; 0 if they read the weight itself.
  int64_t (*packed_bytes)(const ConvPlan&);
  /// With bf16_terms the weight is f32, be the problem bf16 (one term).
  void (*pack)(const ConvPlan&, const void* weight, void* packed);
  void (*forward)(const ConvPlan&, const void* x, const void* packed, void* y,
                  const ForwardFusion&);
  void (*dgrad)(const ConvPlan&, const void* dy, const void* packed, void* dx, const DgradFusion&);
  void (*wgrad)(const ConvPlan&, const void* x, const void* dy, void* dw, const SourceMap&);
  /// How many times the multiplications of this pass the definition has; null: as many.
  double (*saving)(const ConvProblem&, ConvPass) = nullptr;
  /// The x_gap with which forward would read x where it lies, and not a copy with padding. Null: none, and y is
  /// not to have one either.
  int64_t (*wanted_gap)(const ConvPlan&) = nullptr;
};

/// All of them, best first, the reference last.
std::span<const ConvKernel* const> conv_kernels();

/// A pass of a problem and what runs it.
struct ConvPlan {
  ConvProblem problem;
  ConvPass pass;
  const ConvKernel* kernel;
  const GemmKernel* gemm;  // the tile under conv_brgemm
  /// Not 0: a problem of f32 on a tile of bf16, to which so many terms go (gemm/bf16_terms.h). Operands
  /// become bf16 where they are packed or copied to scratch; sums, outputs and all else stay f32.
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

// Each may do more on the way (fusion.h).

/// y = conv(x, weight)
void conv_forward(const ConvPlan& plan, const void* x, const void* packed, void* y,
                  const ForwardFusion& fusion = {});
void conv_dgrad(const ConvPlan& plan, const void* dy, const void* packed, void* dx,
                const DgradFusion& fusion = {});
/// dw is written as [oc, ic/groups, kh, kw] in f32 (f64 for f64).
void conv_wgrad(const ConvPlan& plan, const void* x, const void* dy, void* dw,
                const SourceMap& map = {});
/// db[oc] = Σ dy over images and pixels, in f32 (f64 for f64).
void conv_bias_grad(const ConvProblem& problem, const void* dy, void* db);

}  // namespace quern::kernels
