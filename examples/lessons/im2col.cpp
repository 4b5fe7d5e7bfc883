// A convolution as a matrix product. Each output pixel is a row of A: all that its filter sees,
// side by side, which is called im2col. B has a filter in each column.
//
//     y[pixel][oc]  = Σ  columns[pixel][(r·kw + q)·ic + c] · w[oc][c][r][q]        forward
//     dcolumns      = dy · wᵀ, of which each item is added to the pixel it came from    dgrad
//     dw            = columnsᵀ · dy, summed over pixels                                wgrad
//
// It copies each pixel once a tap, and holds all sums in f32 before the epilogue begins: the
// library's kernels do neither (taps/conv_brgemm.cpp).
#include "im2col.h"

#include <algorithm>

#include "frame.h"
#include "quern/tensor/divide.h"
#include "quern/tensor/dtype.h"
#include "quern/tensor/parallel.h"
#include "quern/tensor/storage.h"

namespace quern::lessons {
namespace {

using namespace kernels;

/// The same tensor with a pixel's channels side by side.
Image in_rows(const Image& image) {
  Image rows = image;
  rows.strides = {MemoryFormat::channels_last, image.channels, image.height, image.width};
  return rows;
}

template <class T>
class Im2colPlan final : public ConvPlan {
 public:
  Im2colPlan(const ConvChoice& choice, Gemm<T>* gemm) : ConvPlan(choice), gemm_(gemm) {}

  /// forward: [groups][k][ocg], dgrad: [groups][ocg][k], k being (r·kw + q)·icg + c.
  int64_t packed_bytes() const override {
    return pass == ConvPass::wgrad ? 0 : problem.oc * k() * int64_t{sizeof(T)};
  }
  void pack(const void* weight, DType of_weight, void* packed) const override {
    const int64_t k = this->k(), ocg = this->ocg();
    const bool forward = pass == ConvPass::forward;
    each_weight([&](int64_t g, int64_t j, int64_t p, int64_t from) {
      static_cast<T*>(packed)[g * ocg * k + (forward ? p * ocg + j : j * k + p)] =
          of_weight == DType::f32 ? static_cast<T>(static_cast<const float*>(weight)[from])
                                  : static_cast<const T*>(weight)[from];
    });
  }

 private:
  int64_t icg() const { return problem.ic / problem.groups; }
  int64_t ocg() const { return problem.oc / problem.groups; }
  int64_t k() const { return problem.kh * problem.kw * icg(); }
  Image x_image() const { return {problem.format, problem.n, problem.ic, problem.ih, problem.iw}; }
  Image y_image() const { return {problem.format, problem.n, problem.oc, problem.oh, problem.ow}; }

  /// f(g, j, p, i): element [g·ocg + j][c][r][q] of the weight is the i-th of it, and p its row of
  /// the columns' product. A block of both channels at a time: whatever f writes is near.
  template <class F>
  void each_weight(F f) const {
    constexpr int64_t kBlock = 16;
    const int64_t area = problem.kh * problem.kw, blocks = ceil_div(ocg(), kBlock);
    parallel_for(problem.groups * blocks, [&](int64_t cell) {
      const int64_t g = cell / blocks, begin = cell % blocks * kBlock;
      const int64_t end = std::min(begin + kBlock, ocg());
      for (int64_t block = 0; block < icg(); block += kBlock)
        for (int64_t tap = 0; tap < area; ++tap)
          for (int64_t j = begin; j < end; ++j)
            for (int64_t c = block; c < std::min(block + kBlock, icg()); ++c)
              f(g, j, tap * icg() + c, ((g * ocg() + j) * icg() + c) * area + tap);
    });
  }
  /// f(pixel, p, position): items p..p+icg of an output pixel's row are channels of one pixel of x,
  /// whose first is that position of [pixels][ic]; -1 on the padding.
  template <class F>
  void each_tap(int64_t begin, int64_t end, F f) const {
    const ConvProblem& c = problem;
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      const int64_t image = pixel / (c.oh * c.ow), oy = pixel / c.ow % c.oh, ox = pixel % c.ow;
      for (int64_t tap = 0; tap < c.kh * c.kw; ++tap) {
        const int64_t y = oy * c.stride_h - c.pad_h + tap / c.kw * c.dilation_h;
        const int64_t x = ox * c.stride_w - c.pad_w + tap % c.kw * c.dilation_w;
        const bool inside = y >= 0 && y < c.ih && x >= 0 && x < c.iw;
        f(pixel, tap * icg(), inside ? ((image * c.ih + y) * c.iw + x) * c.ic : -1);
      }
    }
  }
  /// Output pixels in chunks whose columns take 4 MiB.
  template <class F>
  void each_chunk(F f) const {
    const int64_t pixels = y_image().pixels;
    const int64_t rows =
        std::clamp<int64_t>((int64_t{1} << 20) / k(), 64, pixels < 64 ? 64 : pixels);
    for (int64_t begin = 0; begin < pixels; begin += rows)
      for (int64_t g = 0; g < problem.groups; ++g) f(begin, std::min(begin + rows, pixels), g);
  }

  void forward(const T* x, const T* weight, float* y) const {
    const Workspace room(most_columns());
    each_chunk([&](int64_t begin, int64_t end, int64_t g) {
      T* const columns = room.as<T>();
      parallel_chunks(end - begin, 64, [&](int64_t from, int64_t to) {
        each_tap(begin + from, begin + to, [&](int64_t pixel, int64_t p, int64_t at) {
          T* const to_row = columns + (pixel - begin) * k() + p;
          if (at < 0) std::fill_n(to_row, icg(), T{});
          else std::copy_n(x + at + g * icg(), icg(), to_row);
        });
      });
      gemm_({end - begin, ocg(), k()}, {columns, k()}, {weight + g * ocg() * k(), ocg()},
            {y + begin * problem.oc + g * ocg(), problem.oc});
    });
  }
  void dgrad(const T* dy, const T* weight, float* dx) const {
    const Workspace room(most_columns() / int64_t{sizeof(T)} * int64_t{sizeof(float)});
    each_chunk([&](int64_t begin, int64_t end, int64_t g) {
      float* const columns = room.as<float>();
      std::fill_n(columns, (end - begin) * k(), 0.0f);
      gemm_({end - begin, k(), ocg()}, {dy + begin * problem.oc + g * ocg(), problem.oc},
            {weight + g * ocg() * k(), k()}, {columns, k()});
      parallel_chunks(icg(), 32, [&](int64_t from, int64_t to) {
        each_tap(begin, end, [&](int64_t pixel, int64_t p, int64_t at) {
          if (at < 0) return;
          const float* row = columns + (pixel - begin) * k() + p;
          for (int64_t c = from; c < to; ++c) dx[at + g * icg() + c] += row[c];
        });
      });
    });
  }
  void wgrad(const T* x, const T* dy, float* dw) const {
    const Workspace room(most_columns());
    const Workspace sums(problem.oc * k() * int64_t{sizeof(float)});  // [groups][k][ocg]
    std::fill_n(sums.as<float>(), problem.oc * k(), 0.0f);
    each_chunk([&](int64_t begin, int64_t end, int64_t g) {
      T* const columns = room.as<T>();  // transposed: [k][pixels]
      parallel_chunks(end - begin, 64, [&](int64_t from, int64_t to) {
        each_tap(begin + from, begin + to, [&](int64_t pixel, int64_t p, int64_t at) {
          for (int64_t c = 0; c < icg(); ++c)
            columns[(p + c) * (end - begin) + pixel - begin] = at < 0 ? T{} : x[at + g * icg() + c];
        });
      });
      gemm_({k(), ocg(), end - begin}, {columns, end - begin},
            {dy + begin * problem.oc + g * ocg(), problem.oc},
            {sums.as<float>() + g * ocg() * k(), ocg()});
    });
    const int64_t k = this->k(), ocg = this->ocg();
    each_weight([&](int64_t g, int64_t j, int64_t p, int64_t to) {
      dw[to] = sums.as<float>()[(g * k + p) * ocg + j];
    });
  }
  int64_t most_columns() const {
    return std::max((int64_t{1} << 20), 64 * k()) * int64_t{sizeof(T)};
  }

  void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
               const ChannelMap& prologue) const override {
    const Image x = x_image(), y = y_image();
    const Image pixels_of_x = in_rows(x), pixels_of_y = in_rows(y);
    const auto *source = static_cast<const T*>(from), *other = static_cast<const T*>(with);
    if (pass == ConvPass::wgrad)
      return wgrad(Arranged<T>(x, pixels_of_x, source, prologue).data(),
                   Arranged<T>(y, pixels_of_y, other).data(), static_cast<float*>(to));
    const Image& out = pass == ConvPass::forward ? y : x;
    const Workspace sums(out.pixels * out.channels * int64_t{sizeof(float)});
    std::fill_n(sums.as<float>(), out.pixels * out.channels, 0.0f);
    if (pass == ConvPass::forward)
      forward(Arranged<T>(x, pixels_of_x, source, prologue).data(), other, sums.as<float>());
    else dgrad(Arranged<T>(y, pixels_of_y, source).data(), other, sums.as<float>());
    complete(out, in_rows(out), sums.as<float>(), epilogue, static_cast<T*>(to));
  }

  Gemm<T>* const gemm_;
};

}  // namespace

std::unique_ptr<const ConvPlan> im2col_plan(const ConvChoice& choice, Gemm<float>* f32,
                                            Gemm<bfloat16>* bf16) {
  if (choice.problem.dtype == DType::f32)
    return std::make_unique<const Im2colPlan<float>>(choice, f32);
  return std::make_unique<const Im2colPlan<bfloat16>>(choice, bf16);
}

}  // namespace quern::lessons
