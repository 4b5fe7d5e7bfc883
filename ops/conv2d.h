// conv2d: cross-correlation of images with a bank of filters.
#pragma once
#include "quern/tensor/pair.h"
#include "quern/tensor/tensor.h"

namespace quern {

/// y[n,o,i,j] = bias[o] + Σ over c, r, s of weight[o,c,r,s] · x[n, g·C/groups + c, i·stride -
/// padding + r·dilation, j·stride - padding + s·dilation], g the group of o; x is 0 outside.
///   x       [N, C, H, W], f32, bf16 or f64; y has its dtype and format
///   weight  [O, C/groups, KH, KW], of x's dtype; under autocast both are lowered to bf16
///   bias    [O], f32 or of x's dtype (f64 for f64); may be undefined
///   y       [N, O, OH, OW], OH = floor((H + 2·padding - dilation·(KH-1) - 1) / stride) + 1
/// The sums of bf16 are padded with zeros of the weight, or of dy, times what follows in x: there a
/// NaN or infinity may reach outputs left of its window too, and gradients of all columns of the
/// weight. In any dtype a NaN of dy may reach gradients of taps that read padding there.
/// 3×3 filters of f32 with stride, dilation and groups of 1 on channels_last go by Winograd's
/// F(2×2, 3×3) or, on large images, F(4×4, 3×3), forward and for x's gradient, and by F(2×2) for
/// the weight's, where that is faster: F(2×2) with about 0.6 of the rounding error of plain sums
/// (root mean square, 128 channels), F(4×4) with 1.2 to 1.9 of it (512 to 64 channels); but
/// relative to the largest of a tile's 4×4 or 6×6 pixels of x, not to each output's own 3×3. A NaN
/// or infinity reaches all 2×2 or 4×4 outputs of the tile. QUERN_WINOGRAD=0 switches it off.
/// f32 is multiplied as float32_matmul_precision.h tells, but for channels with filters of their
/// own (groups = C), whose products are always of f32, those of bf16 too.
/// The gradients of weight and bias are f32 (f64 for f64). Errors: rank, dtype, an empty x or
/// weight, channels, groups that divide neither, stride or dilation < 1, padding < 0, a kernel
/// larger than the padded x.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Pair stride = 1,
              Pair padding = 0, Pair dilation = 1, int64_t groups = 1);

}  // namespace quern
