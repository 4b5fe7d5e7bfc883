// Step 0: the definition. An output is the sum of what its filter sees, times the filter.
#include <algorithm>

#include "conv.h"
#include "quern/tensor/parallel.h"

namespace quern::lessons {

// [seven loops]
void seven_loops(const ConvProblem& p, const float* x, const float* w, float* y) {
  parallel_for(p.n * p.oc, [&](int64_t cell) {  // two loops: images n, filters o
    const int64_t n = cell / p.oc, o = cell % p.oc;
    for (int64_t oy = 0; oy < p.oh; ++oy) {
      for (int64_t ox = 0; ox < p.ow; ++ox) {
        float sum = 0;
        for (int64_t c = 0; c < p.ic; ++c) {
          for (int64_t r = 0; r < p.kh; ++r) {
            for (int64_t q = 0; q < p.kw; ++q) {
              const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
              const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
              if (iy < 0 || iy >= p.ih || ix < 0 || ix >= p.iw) continue;  // zeros
              sum += x[((n * p.ic + c) * p.ih + iy) * p.iw + ix] *
                     w[((o * p.ic + c) * p.kh + r) * p.kw + q];
            }
          }
        }
        y[((n * p.oc + o) * p.oh + oy) * p.ow + ox] = sum;
      }
    }
  });
}
// [end]

void gradient_by_loops(const ConvProblem& p, const float* x, const float* dy, float* dw) {
  parallel_for(p.oc * p.ic, [&](int64_t cell) {
    const int64_t o = cell / p.ic, c = cell % p.ic;
    for (int64_t r = 0; r < p.kh; ++r) {
      for (int64_t q = 0; q < p.kw; ++q) {
        float sum = 0;
        for (int64_t n = 0; n < p.n; ++n) {
          for (int64_t oy = 0; oy < p.oh; ++oy) {
            for (int64_t ox = 0; ox < p.ow; ++ox) {
              const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
              const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
              if (iy < 0 || iy >= p.ih || ix < 0 || ix >= p.iw) continue;
              sum += x[((n * p.ic + c) * p.ih + iy) * p.iw + ix] *
                     dy[((n * p.oc + o) * p.oh + oy) * p.ow + ox];
            }
          }
        }
        dw[(cell * p.kh + r) * p.kw + q] = sum;
      }
    }
  });
}

int64_t count_as_they_are(const ConvProblem& p) { return p.oc * p.ic * p.kh * p.kw; }

void as_they_are(const ConvProblem& p, const float* w, float* filters) {
  std::copy_n(w, count_as_they_are(p), filters);
}

}  // namespace quern::lessons
