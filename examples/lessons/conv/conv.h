// What the steps of this lesson share: the form of a step.
//
// A convolution is described as the library does it: ConvProblem has the sizes of
// x [n, ic, ih, iw], of y [n, oc, oh, ow] and of the filters [oc, ic, kh, kw], strides, padding and
// dilation. All is f32, of one group. Tensors lie in memory without gaps in the step's format:
// contiguous is [n][c][y][x], channels_last [n][y][x][c].
#pragma once
#include "quern/ops/kernels/conv/conv_kernel.h"

namespace quern::lessons {

using kernels::ConvPass;
using kernels::ConvProblem;

/// y = x convolved with the filters, which lie as the step has packed them.
using Convolve = void(const ConvProblem& p, const float* x, const float* filters, float* y);
/// What the step's filters are made of: w [oc][ic][kh][kw].
using PackFilters = void(const ConvProblem& p, const float* w, float* filters);
using PackedFloats = int64_t(const ConvProblem& p);
/// dw [oc][ic][kh][kw], the gradient of the filters.
using FilterGradient = void(const ConvProblem& p, const float* x, const float* dy, float* dw);

// The steps by their numbers. Filters of step 5 are packed as those of step 4.
Convolve seven_loops, im2col_product, taps, channels_last, batch_reduce, winograd;
Convolve input_gradient_by_phases;  // dx of dy
PackFilters as_they_are, filters_by_tap, filters_in_panels, filters_of_tiles, filters_of_points;
PackedFloats count_as_they_are, count_in_panels, count_of_tiles, count_of_points;
FilterGradient gradient_by_loops, gradient_by_product, gradient_by_outer_products;

}  // namespace quern::lessons
