// Windows that slide down the rows (DepthwiseKernel::store_rows), on every instruction set.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "depthwise_cases.h"

using namespace quern;
using namespace quern::kernels;
using namespace quern::test;

namespace {

struct Rows {
  DepthwiseWindow window{};
  DepthwiseRows rows{};
  double weight = 0;  // of a tap in the middle of the first channels; 0: as the others
};

std::vector<double> run_rows(const DepthwiseKernel& kernel, const Rows& r) {
  DepthwiseWindow w = r.window;
  DepthwiseRows rows = r.rows;
  const int64_t pitch = w.channels + 3, taps = w.rows * w.taps;
  w.pixel = pitch, w.source_row = w.width * pitch + 5;
  // As dgrad has them: from the last tap to the first.
  w.weight_tap = -pitch, w.weight_row = -w.taps * pitch;
  rows.out_row = w.outputs * pitch + 7;
  Buffer source(kernel.dtype, integers((rows.end - rows.begin) * w.source_row + pitch, 1));
  Buffer weight(DType::f32, integers(taps * pitch, 2)), shift(DType::f32, integers(w.channels, 3));
  if (r.weight != 0) weight.set(taps / 2 * pitch + 1, r.weight);
  Buffer out(kernel.dtype, rows.count * rows.out_row);
  for (int64_t i = 0; i < rows.count * rows.out_row; ++i) out.set(i, 7);  // what no output is keeps
  w.source = static_cast<const std::byte*>(source.data()) -
             rows.begin * w.source_row * itemsize(kernel.dtype);
  kernel.store_rows(w, rows, floats(weight.at((taps - 1) * pitch)),
                    {floats(shift.data()), Activation::relu6}, out.data(), pitch);
  CHECK(out.guarded());
  return out.values();
}

Rows draw_rows(int i) {
  static Draws draw{3};
  Rows r;
  DepthwiseWindow& w = r.window;
  w.taps = w.rows = 3 + 2 * draw(0, 1);
  w.width = draw(1, 24), w.outputs = draw(1, 21), w.stride = draw(1, 2), w.offset_step = 1;
  w.offset = draw(-w.taps - 2, 4);
  w.channels = draw(kDepthwiseChannels, 50);
  w.fresh = i % 2;
  r.rows.count = draw(1, 12);
  r.rows.begin = draw(0, 3), r.rows.end = r.rows.begin + draw(1, 20);
  return r;
}

}  // namespace

TEST_CASE("Windows that slide down the rows make what the reference makes row by row") {
  int64_t ran = 0;
  for (int i = 0; i < (kEmulatedCpu ? 40 : 400); ++i) {
    Rows r = draw_rows(i);
    CAPTURE(r.window.taps);
    CAPTURE(r.window.width);
    CAPTURE(r.window.outputs);
    CAPTURE(r.window.offset);
    CAPTURE(r.window.stride);
    CAPTURE(r.window.channels);
    CAPTURE(r.rows.count);
    CAPTURE(r.rows.begin);
    CAPTURE(r.rows.end);
    // Integers: exact, whatever the order of a sum.
    for (double weight : {0.0, std::numeric_limits<double>::infinity()}) {
      r.weight = weight;
      const std::vector<double> expected[] = {run_rows(reference_of(DType::f32), r),
                                              run_rows(reference_of(DType::bf16), r)};
      each_runnable(table<DepthwiseKernel>(), [&](const DepthwiseKernel& kernel) {
        if (!kernel.slides(r.window.taps, r.window.stride)) return;
        CAPTURE(std::string(kernel.name));
        const std::vector<double>& wanted = expected[kernel.dtype == DType::bf16];
        const std::vector<double> got = run_rows(kernel, r);
        CHECK(same_kinds(got, wanted));  // an infinite weight meets zeros and no padding
        if (weight == 0) CHECK(got == wanted);
        ++ran;
      });
    }
  }
  CHECK(ran > 0);
}
