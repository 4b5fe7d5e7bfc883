// Step 1: what the filter sees for each output pixel becomes a column of a matrix. The convolution
// is then one product, and so is the gradient of its filters.
#include <algorithm>

#include "conv.h"
#include "gemm/gemm.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

// [im2col]
/// Of one image: columns[(c, r, q)][(oy, ox)] is the pixel
/// that the tap (r, q) reads there of channel c.
void im2col(const ConvProblem& p, const float* x, float* columns) {
  parallel_for(p.ic * p.kh * p.kw, [&](int64_t row) {
    const int64_t c = row / (p.kh * p.kw), r = row / p.kw % p.kh, q = row % p.kw;
    float* to = columns + row * p.oh * p.ow;
    for (int64_t oy = 0; oy < p.oh; ++oy) {
      const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
      for (int64_t ox = 0; ox < p.ow; ++ox) {
        const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
        const bool inside = iy >= 0 && iy < p.ih && ix >= 0 && ix < p.iw;
        *to++ = inside ? x[(c * p.ih + iy) * p.iw + ix] : 0;
      }
    }
  });
}
// [end]

}  // namespace

// [product]
/// y[oc × pixels] = w[oc × k] · columns[k × pixels], for each image.
void im2col_product(const ConvProblem& p, const float* x, const float* w, float* y) {
  const int64_t k = p.ic * p.kh * p.kw, pixels = p.oh * p.ow;
  const Workspace room(k * pixels * int64_t{sizeof(float)});
  float* const columns = room.as<float>();
  std::fill_n(y, p.n * p.oc * pixels, 0.0f);
  for (int64_t n = 0; n < p.n; ++n) {
    im2col(p, x + n * p.ic * p.ih * p.iw, columns);
    threads_f32({p.oc, pixels, k}, {w, k}, {columns, pixels}, {y + n * p.oc * pixels, pixels});
  }
}
// [end]

namespace {

void transpose(int64_t rows, int64_t columns, const float* from, float* to) {
  parallel_for(columns, [&](int64_t j) {
    for (int64_t i = 0; i < rows; ++i) to[j * rows + i] = from[i * columns + j];
  });
}

}  // namespace

// [gradient]
/// dwᵀ[k × oc] = columns[k × pixels] · dyᵀ[pixels × oc], summed over images.
void gradient_by_product(const ConvProblem& p, const float* x, const float* dy, float* dw) {
  const int64_t k = p.ic * p.kh * p.kw, pixels = p.oh * p.ow;
  const Workspace room((k * pixels + pixels * p.oc + k * p.oc) * int64_t{sizeof(float)});
  float *const columns = room.as<float>(), *const dy_t = columns + k * pixels;
  float* const dw_t = dy_t + pixels * p.oc;
  std::fill_n(dw_t, k * p.oc, 0.0f);
  for (int64_t n = 0; n < p.n; ++n) {
    im2col(p, x + n * p.ic * p.ih * p.iw, columns);
    transpose(p.oc, pixels, dy + n * p.oc * pixels, dy_t);
    threads_f32({k, p.oc, pixels}, {columns, pixels}, {dy_t, p.oc}, {dw_t, p.oc});
  }
  transpose(k, p.oc, dw_t, dw);
}
// [end]

}  // namespace quern::lessons
