// Step 5: the input's gradient of a convolution with a stride. Pixels of dx whose index has the
// same remainder modulo the stride meet the same taps: a phase. Each is a convolution of dy without
// a stride, by the library's drawings of an axis.
#include <vector>

#include "batch.h"
#include "quern/ops/kernels/conv/axis.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

using kernels::Axis;
using kernels::Phase;
using kernels::Tap;

/// dy with zeros left and right, as far as taps reach: [n][oh][width][oc]. None above and below:
/// taps that would read them are left out.
struct Source {
  Source(const ConvProblem& p, const Axis& x, const float* dy)
      : width(x.extent(x.longest_phase())),
        channels(p.oc),
        copy(p.n * p.oh * width * p.oc * int64_t{sizeof(float)}) {
    parallel_for(p.n * p.oh, [&](int64_t row) {
      float* to = copy.as<float>() + row * width * p.oc;
      for (int64_t j = 0; j < width; ++j, to += p.oc) {
        const int64_t ox = j + x.lead;
        if (ox < 0 || ox >= p.ow) std::fill_n(to, p.oc, 0.0f);
        else std::copy_n(dy + (row * p.ow + ox) * p.oc, p.oc, to);
      }
    });
  }
  const float* at(int64_t row, int64_t j) const {
    return copy.as<float>() + (row * width + j) * channels;
  }
  const int64_t width, channels;
  const Workspace copy;
};

// [phase]
/// The pixels of dx in phase y of the rows, x of the columns.
void run_phase(const ConvProblem& p, const Axis& ys, const Phase& y, const Axis& xs, const Phase& x,
               const Source& dy, const float* filters, float* dx) {
  const BatchTile& tile = best_batch_tile();
  const int64_t area = p.kh * p.kw, panels = ceil_div(p.ic, tile.nr);
  const TilesOfRows tiles(p.n * y.count, x.count, tile.mr);
  parallel_for(panels * tiles.cells(), [&](int64_t cell) {
    const int64_t panel = cell / tiles.cells(), c = panel * tile.nr;
    std::vector<const float*> a, b;
    tiles.each(cell % tiles.cells(), [&](int64_t row, int64_t first, int64_t m) {
      const int64_t n = row / y.count, i = row % y.count;
      const Axis::Range live = ys.live_taps(y, i);  // those that read a row of dy, not zeros
      a.clear(), b.clear();
      for (int64_t t = live.begin; t < live.end; ++t) {
        for (int64_t s = 0; s < x.taps; ++s) {
          const Tap r = ys.tap(y, t), q = xs.tap(x, s);
          const int64_t turned = (p.kh - 1 - r.kernel) * p.kw + p.kw - 1 - q.kernel;
          a.push_back(dy.at(n * p.oh + i + r.offset, first + q.shift));
          b.push_back(filters + (panel * area + turned) * p.oc * tile.nr);
        }
      }
      const int64_t iy = y.start + i * p.stride_h, ix = x.start + first * p.stride_w;
      run_batch(tile,
                {.m = m,
                 .k = p.oc,
                 .count = std::ssize(a),
                 .a = a.data(),
                 .b = b.data(),
                 .a_row = p.oc,
                 .a_step = 1,
                 .b_step = tile.nr,
                 .c = dx + ((n * p.ih + iy) * p.iw + ix) * p.ic + c,
                 .ldc = p.stride_w * p.ic},
                p.ic - c);
    });
  });
}
// [end]

}  // namespace

void input_gradient_by_phases(const ConvProblem& p, const float* dy, const float* filters,
                              float* dx) {
  const Axis y = kernels::dgrad_axis(p.ih, p.oh, p.kh, p.stride_h, p.pad_h, p.dilation_h);
  const Axis x = kernels::dgrad_axis(p.iw, p.ow, p.kw, p.stride_w, p.pad_w, p.dilation_w);
  const Source source(p, x, dy);
  for (int64_t i = 0; i < y.phases(); ++i)
    for (int64_t j = 0; j < x.phases(); ++j)
      run_phase(p, y, y.phase(i), x, x.phase(j), source, filters, dx);
}

}  // namespace quern::lessons
