// What Winograd can compute, and the convolution as its engines see it.
#include "quern/ops/kernels/conv/winograd/winograd.h"

#include <algorithm>

#include "quern/ops/kernels/blocking.h"
#include "quern/tensor/divide.h"

namespace quern::kernels {

const char* why_winograd_cannot(const ConvProblem& p, ConvPass pass, const GemmKernel& gemm) {
  if (p.dtype == DType::bf16) return "transforms would round to bf16 once more";
  if (p.dtype != DType::f32) return "f64 is computed by the definition";
  if (gemm.a != DType::f32) return "transforms would be rounded to bf16";
  if (p.kh != 3 || p.kw != 3 || p.stride_h != 1 || p.stride_w != 1 || p.dilation_h != 1 ||
      p.dilation_w != 1 || p.groups != 1)
    return "filters are not 3×3 with stride, dilation and groups of 1";
  if (p.pad_h > 2 || p.pad_w > 2) return "padding is larger than 2";
  if (p.x_gap != 0 || p.y_gap != 0) return "rows have gaps between them";
  if (pass == ConvPass::wgrad && !gemm.run_outer) return "the micro-kernel has no outer products";
  // The most that a row of tiles takes is 512 bytes a pixel and channel; divided, since the product
  // may overflow.
  if (p.iw + p.ow > cache::kMostScratch / 512 / std::max(p.ic, p.oc))
    return "scratch for one row of tiles is over 256 MiB";
  return nullptr;
}

WinogradConv::WinogradConv(const ConvProblem& p, ConvPass pass, int64_t tile)
    : tile(tile),
      images(p.n),
      height(p.oh),
      width(p.ow),
      source_channels(p.ic),
      output_channels(p.oc) {
  const auto even = [&](int64_t outputs) { return round_up(outputs, tile); };
  if (pass != ConvPass::dgrad) {
    y = forward_axis(p.ih, even(p.oh), 3, 1, p.pad_h, 1);
    x = forward_axis(p.iw, even(p.ow), 3, 1, p.pad_w, 1);
  } else {
    height = p.ih, width = p.iw;
    std::swap(source_channels, output_channels);
    y = forward_axis(p.oh, even(p.ih), 3, 1, 2 - p.pad_h, 1);
    x = forward_axis(p.ow, even(p.iw), 3, 1, 2 - p.pad_w, 1);
  }
}

}  // namespace quern::kernels
