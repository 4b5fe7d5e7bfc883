// What conv2d and the chains of ops/fused share: the checks, the problem, its plan and its weight.
#pragma once
#include <memory>

#include "quern/ops/detail/packed_copy.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"

namespace quern::detail {

/// Errors of conv2d unless x is a floating, non-empty [N, C, H, W] and weight, which may only
/// differ in dtype under autocast, is one of its filters.
void check_conv_operands(const Tensor& x, const Tensor& weight);
/// conv2d of an x of this shape. Errors of conv2d: all that sizes can be wrong about.
kernels::ConvProblem conv_problem(const Shape& x, DType dtype, MemoryFormat format,
                                  const Tensor& weight, Pair stride, Pair padding, Pair dilation,
                                  int64_t groups);
/// Of this x, all checked.
kernels::ConvProblem conv_problem(const Tensor& x, const Tensor& weight, Pair stride, Pair padding,
                                  Pair dilation, int64_t groups);
inline Shape input_shape(const kernels::ConvProblem& p) { return {p.n, p.ic, p.ih, p.iw}; }
inline Shape output_shape(const kernels::ConvProblem& p) { return {p.n, p.oc, p.oh, p.ow}; }

/// forward, y = conv(x, weight), or dgrad, dx of what dy is of y. `source` and `out` are in the
/// problem's dtype and format; the weight is packed, which is kept as long as it doesn't change.
void convolve(const kernels::ConvProblem& problem, kernels::ConvPass pass, const Tensor& source,
              const Tensor& weight, const Tensor& out, const kernels::Epilogue& epilogue = {},
              const kernels::ChannelMap& prologue = {});
/// dweight, of this shape, in the dtype of sums; x is read through the prologue.
Tensor conv_weight_gradient(const kernels::ConvProblem& problem, const Shape& shape,
                            const Tensor& x, const Tensor& dy,
                            const kernels::ChannelMap& prologue = {});
/// Has the problem a kernel that computes both gradients in one pass over x, dy and dx?
bool differentiates_at_once(const kernels::ConvProblem& problem);
/// It: dx as convolve() leaves it, whose epilogue has x (ConvPlan::run_both), and dweight.
Tensor convolve_back(const kernels::ConvProblem& problem, const Tensor& dy, const Tensor& weight,
                     const Tensor& dx, const kernels::Epilogue& epilogue);

/// What runs a pass of it best, multiplying f32 as float32_matmul_precision.h tells. Made once for
/// a problem and kept; beyond 1024 of them, all are made anew.
std::shared_ptr<const kernels::ConvPlan> conv_plan(const kernels::ConvProblem& problem,
                                                   kernels::ConvPass pass);
/// Fills plan.packed_bytes() with a weight of f32, to be rounded, or of the problem's dtype.
void pack_weight(const kernels::ConvPlan& plan, const Tensor& weight, void* packed);
/// What a packed weight depends on, beside the weight and the kernels: all of the problem but the
/// images' sizes, since taps may be packed in the order in which a gradient meets them. The last
/// number is 0, for the caller.
PackingParameters packing_parameters(const kernels::ConvPlan& plan);

}  // namespace quern::detail
