#include "padded.h"

#include <algorithm>

#include "quern/tensor/parallel.h"

namespace quern::lessons {
namespace {

/// What `outputs` outputs and their filters reach, along one axis.
int64_t extent(int64_t outputs, int64_t kernel, int64_t stride, int64_t dilation) {
  return (outputs - 1) * stride + (kernel - 1) * dilation + 1;
}

bool in_place(const ConvProblem& p) {
  return p.pad_h == 0 && extent(p.oh, p.kh, p.stride_h, p.dilation_h) <= p.ih && p.pad_w == 0 &&
         extent(p.ow, p.kw, p.stride_w, p.dilation_w) <= p.iw;
}

}  // namespace

Padded::Padded(const ConvProblem& p, const float* x)
    : height(in_place(p) ? p.ih : extent(p.oh, p.kh, p.stride_h, p.dilation_h)),
      width(in_place(p) ? p.iw : extent(p.ow, p.kw, p.stride_w, p.dilation_w)),
      channels_(p.ic),
      copy_(in_place(p) ? 0 : p.n * height * width * p.ic * int64_t{sizeof(float)}),
      data_(in_place(p) ? x : copy_.as<float>()) {
  if (in_place(p)) return;
  parallel_for(p.n * height, [&](int64_t row) {
    const int64_t n = row / height, iy = row % height - p.pad_h;
    float* to = copy_.as<float>() + row * width * p.ic;
    for (int64_t j = 0; j < width; ++j, to += p.ic) {
      const int64_t ix = j - p.pad_w;
      if (iy < 0 || iy >= p.ih || ix < 0 || ix >= p.iw) std::fill_n(to, p.ic, 0.0f);
      else std::copy_n(x + ((n * p.ih + iy) * p.iw + ix) * p.ic, p.ic, to);
    }
  });
}

}  // namespace quern::lessons
