// Step 2: no columns. Of a zero-padded image, what a tap reads for all outputs lies as the outputs
// do, only further on: a convolution is a sum of products, one a tap, whose operands are offsets.
#include <algorithm>

#include "conv.h"
#include "gemm/gemm.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

// [planes]
/// An image with zeros around it. With a stride of s, every s-th pixel of a row lies in a plane of
/// its own, and every s-th row, so that neighbouring outputs read neighbours.
struct Planes {
  explicit Planes(const ConvProblem& p)
      : down(std::min(p.stride_h, (p.kh - 1) * p.dilation_h + 1)),
        across(std::min(p.stride_w, (p.kw - 1) * p.dilation_w + 1)),
        height(p.oh + (p.kh - 1) * p.dilation_h / p.stride_h),
        width(p.ow + (p.kw - 1) * p.dilation_w / p.stride_w) {}
  int64_t of_channel() const { return down * across * height * width; }
  /// From the first output to what tap (r, q) reads for it.
  int64_t offset(const ConvProblem& p, int64_t r, int64_t q) const {
    const int64_t y = r * p.dilation_h, x = q * p.dilation_w;
    const int64_t plane = y % p.stride_h * across + x % p.stride_w;
    return (plane * height + y / p.stride_h) * width + x / p.stride_w;
  }
  int64_t down, across;   // planes
  int64_t height, width;  // of each
};
// [end]

/// Of one image: to [ic][planes][height][width].
void pad(const ConvProblem& p, const Planes& planes, const float* x, float* to) {
  parallel_for(p.ic * planes.down, [&](int64_t row) {
    const int64_t c = row / planes.down, a = row % planes.down;
    float* out = to + row * planes.across * planes.height * planes.width;
    for (int64_t b = 0; b < planes.across; ++b) {
      for (int64_t i = 0; i < planes.height; ++i) {
        const int64_t iy = i * p.stride_h + a - p.pad_h;
        for (int64_t j = 0; j < planes.width; ++j) {
          const int64_t ix = j * p.stride_w + b - p.pad_w;
          const bool inside = iy >= 0 && iy < p.ih && ix >= 0 && ix < p.iw;
          *out++ = inside ? x[(c * p.ih + iy) * p.iw + ix] : 0;
        }
      }
    }
  });
}

}  // namespace

// [taps]
/// y[oc × run] = Σ over taps of w[tap][oc × ic] · x[ic × run, from the tap's offset on].
/// A run is all outputs of an image, with those between the end of a row and the next,
/// which are thrown away.
void taps(const ConvProblem& p, const float* x, const float* w, float* y) {
  const Planes planes(p);
  const int64_t run = (p.oh - 1) * planes.width + p.ow, ld = planes.of_channel();
  const Workspace room((p.ic * ld + p.oc * run) * int64_t{sizeof(float)});
  float *const padded = room.as<float>(), *const sums = padded + p.ic * ld;
  for (int64_t n = 0; n < p.n; ++n) {
    pad(p, planes, x + n * p.ic * p.ih * p.iw, padded);
    std::fill_n(sums, p.oc * run, 0.0f);
    for (int64_t tap = 0; tap < p.kh * p.kw; ++tap)
      threads_f32({p.oc, run, p.ic}, {w + tap * p.oc * p.ic, p.ic},
                  {padded + planes.offset(p, tap / p.kw, tap % p.kw), ld}, {sums, run});
    parallel_for(p.oc, [&](int64_t o) {
      for (int64_t oy = 0; oy < p.oh; ++oy)
        std::copy_n(sums + o * run + oy * planes.width, p.ow,
                    y + ((n * p.oc + o) * p.oh + oy) * p.ow);
    });
  }
}
// [end]

/// [tap][oc][ic]
void filters_by_tap(const ConvProblem& p, const float* w, float* filters) {
  const int64_t area = p.kh * p.kw;
  parallel_for(p.oc, [&](int64_t o) {
    for (int64_t c = 0; c < p.ic; ++c)
      for (int64_t tap = 0; tap < area; ++tap)
        filters[(tap * p.oc + o) * p.ic + c] = w[(o * p.ic + c) * area + tap];
  });
}

}  // namespace quern::lessons
