// The seven loops, and what a prologue and an epilogue add, a step after the other. Every sum runs
// in the accumulator's type and is rounded once.
#include <algorithm>
#include <cstring>
#include <vector>

#include "quern/ops/kernels/activation.h"
#include "quern/ops/kernels/conv/conv.h"
#include "quern/ops/kernels/work.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

struct Layout {
  explicit Layout(const ConvProblem& p)
      : x(p.format, p.ic, p.ih, p.iw, p.x_gap),
        y(p.format, p.oc, p.oh, p.ow, p.y_gap),
        icg(p.ic / p.groups),
        ocg(p.oc / p.groups),
        work(p.n * p.oc * p.oh * p.ow * icg * p.kh * p.kw) {}
  ImageStrides x, y;
  int64_t icg, ocg;  // channels of a group
  int64_t work;      // multiplications
};

template <class T>
struct Array {  // of a channel or a pixel each, or null
  explicit Array(const void* p) : data(static_cast<const T*>(p)) {}
  Accumulator<T> at(int64_t i, double otherwise) const {
    return static_cast<Accumulator<T>>(data ? data[i] : static_cast<T>(otherwise));
  }
  const T* data;
};

/// f(channel, offset) for every pixel of a tensor [n, channels, h, w].
template <class F>
void each_pixel(const ImageStrides& s, int64_t n, int64_t channels, int64_t h, int64_t w, F f) {
  for (int64_t i = 0; i < n * channels * h * w; ++i) {
    const int64_t c = i / (h * w) % channels;
    f(c, i / (channels * h * w) * s.n + c * s.c + i / w % h * s.y + i % w * s.x);
  }
}

/// x as a convolution with this map reads it.
template <class T>
std::vector<T> mapped(const ConvProblem& p, const T* x, const ChannelMap& map) {
  using Acc = Accumulator<T>;
  const Array<Acc> center(map.center), scale(map.scale), shift(map.shift);
  std::vector<T> z(static_cast<size_t>(p.n * Layout(p).x.n));
  each_pixel(Layout(p).x, p.n, p.ic, p.ih, p.iw, [&](int64_t c, int64_t i) {
    const Acc v = (static_cast<Acc>(x[i]) - center.at(c, 0)) * scale.at(c, 1) + shift.at(c, 0);
    z[static_cast<size_t>(i)] = static_cast<T>(activated(v, map.activation));
  });
  return z;
}

/// From sums to what is stored: an output [n, channels, height, width] of strides s.
template <class T>
void complete(const ImageStrides& s, int64_t n, int64_t channels, int64_t height, int64_t width,
              const Accumulator<T>* sums, const Epilogue& e, T* out) {
  using Acc = Accumulator<T>;
  using Kind = Epilogue::Kind;
  const Array<Acc> center(e.map.center), scale(e.map.scale), shift(e.map.shift);
  const Array<T> x(e.x), residual(e.residual);
  double *first = static_cast<double*>(e.first), *second = static_cast<double*>(e.second);
  if (first) std::fill_n(first, channels, 0.0), std::fill_n(second, channels, 0.0);
  if (e.kind == Kind::moments) {
    const double count = static_cast<double>(n * height * width);
    each_pixel(s, n, channels, height, width,
               [&](int64_t c, int64_t i) { first[c] += static_cast<double>(sums[i]) / count; });
  }
  each_pixel(s, n, channels, height, width, [&](int64_t c, int64_t i) {
    Acc v = sums[i];
    if (e.kind == Kind::activate) v += shift.at(c, 0);
    v += residual.at(i, 0);
    v = activated(v, e.activation);
    if (e.kind == Kind::moments) {
      const double d = static_cast<double>(v) - first[c];
      second[c] += d * d;
    }
    if (e.kind == Kind::gradient) {
      const Acc distance = x.at(i, 0) - center.at(c, 0);
      v = through(v, distance * scale.at(c, 1) + shift.at(c, 0), e.map.activation);
      first[c] += static_cast<double>(v);
      second[c] += static_cast<double>(v) * static_cast<double>(distance);
    }
    out[i] = static_cast<T>(v);
  });
}

template <class T>
void forward(const ConvProblem& p, const T* x, const T* w, Accumulator<T>* sums) {
  const Layout s(p);
  parallel_pieces(p.n * p.oc, s.work / (p.n * p.oc), [&](int64_t cell) {
    const int64_t n = cell / p.oc, o = cell % p.oc;
    for (int64_t oy = 0; oy < p.oh; ++oy) {
      for (int64_t ox = 0; ox < p.ow; ++ox) {
        Accumulator<T> sum = 0;
        for (int64_t r = 0; r < p.kh; ++r) {
          const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
          if (iy < 0 || iy >= p.ih) continue;
          for (int64_t q = 0; q < p.kw; ++q) {
            const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
            if (ix < 0 || ix >= p.iw) continue;
            for (int64_t c = 0; c < s.icg; ++c) {
              const int64_t ic = o / s.ocg * s.icg + c;
              sum +=
                  static_cast<Accumulator<T>>(x[n * s.x.n + ic * s.x.c + iy * s.x.y + ix * s.x.x]) *
                  static_cast<Accumulator<T>>(w[((o * s.icg + c) * p.kh + r) * p.kw + q]);
            }
          }
        }
        sums[n * s.y.n + o * s.y.c + oy * s.y.y + ox * s.y.x] = sum;
      }
    }
  });
}

template <class T>
void dgrad(const ConvProblem& p, const T* dy, const T* w, Accumulator<T>* sums) {
  const Layout s(p);
  parallel_pieces(p.n * p.ic, s.work / (p.n * p.ic), [&](int64_t cell) {
    const int64_t n = cell / p.ic, c = cell % p.ic;
    for (int64_t iy = 0; iy < p.ih; ++iy) {
      for (int64_t ix = 0; ix < p.iw; ++ix) {
        Accumulator<T> sum = 0;
        for (int64_t r = 0; r < p.kh; ++r) {
          const int64_t ty = iy + p.pad_h - r * p.dilation_h, oy = ty / p.stride_h;
          if (ty < 0 || ty % p.stride_h != 0 || oy >= p.oh) continue;
          for (int64_t q = 0; q < p.kw; ++q) {
            const int64_t tx = ix + p.pad_w - q * p.dilation_w, ox = tx / p.stride_w;
            if (tx < 0 || tx % p.stride_w != 0 || ox >= p.ow) continue;
            for (int64_t j = 0; j < s.ocg; ++j) {
              const int64_t o = c / s.icg * s.ocg + j;
              sum +=
                  static_cast<Accumulator<T>>(dy[n * s.y.n + o * s.y.c + oy * s.y.y + ox * s.y.x]) *
                  static_cast<Accumulator<T>>(w[((o * s.icg + c % s.icg) * p.kh + r) * p.kw + q]);
            }
          }
        }
        sums[n * s.x.n + c * s.x.c + iy * s.x.y + ix * s.x.x] = sum;
      }
    }
  });
}

template <class T>
void wgrad(const ConvProblem& p, const T* x, const T* dy, Accumulator<T>* dw) {
  const Layout s(p);
  parallel_pieces(p.oc * s.icg, s.work / (p.oc * s.icg), [&](int64_t cell) {
    const int64_t o = cell / s.icg, c = o / s.ocg * s.icg + cell % s.icg;
    for (int64_t r = 0; r < p.kh; ++r) {
      for (int64_t q = 0; q < p.kw; ++q) {
        Accumulator<T> sum = 0;
        for (int64_t n = 0; n < p.n; ++n) {
          for (int64_t oy = 0; oy < p.oh; ++oy) {
            const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
            if (iy < 0 || iy >= p.ih) continue;
            for (int64_t ox = 0; ox < p.ow; ++ox) {
              const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
              if (ix < 0 || ix >= p.iw) continue;
              sum +=
                  static_cast<Accumulator<T>>(x[n * s.x.n + c * s.x.c + iy * s.x.y + ix * s.x.x]) *
                  static_cast<Accumulator<T>>(dy[n * s.y.n + o * s.y.c + oy * s.y.y + ox * s.y.x]);
            }
          }
        }
        dw[(cell * p.kh + r) * p.kw + q] = sum;
      }
    }
  });
}

class ReferencePlan final : public ConvPlan {
 public:
  explicit ReferencePlan(const ConvChoice& choice) : ConvPlan(choice) {}

  /// The weight as it is.
  int64_t packed_bytes() const override {
    return pass == ConvPass::wgrad ? 0 : weight_items() * itemsize(problem.dtype);
  }
  void pack(const void* weight, DType of_weight, void* packed) const override {
    if (of_weight != problem.dtype) {
      const auto* from = static_cast<const float*>(weight);
      std::transform(from, from + weight_items(), static_cast<bfloat16*>(packed),
                     [](float v) { return bfloat16(v); });
    } else {
      std::memcpy(packed, weight, static_cast<size_t>(packed_bytes()));
    }
  }

 private:
  int64_t weight_items() const {
    return problem.oc * (problem.ic / problem.groups) * problem.kh * problem.kw;
  }
  void compute(const void* from, const void* with, void* to, const Epilogue& epilogue,
               const ChannelMap& prologue) const override {
    visit_floating("conv2d", problem.dtype, [&]<class T>(std::type_identity<T>) {
      using Acc = Accumulator<T>;
      const ConvProblem& p = problem;
      const T *source = static_cast<const T*>(from), *other = static_cast<const T*>(with);
      std::vector<T> z;
      if (prologue.scale) source = (z = mapped(p, source, prologue)).data();
      if (pass == ConvPass::wgrad) return wgrad(p, source, other, static_cast<Acc*>(to));
      const bool is_forward = pass == ConvPass::forward;
      const int64_t items = is_forward ? p.n * Layout(p).y.n : p.n * p.ic * p.ih * p.iw;
      std::vector<Acc> sums(static_cast<size_t>(items));
      T* out = static_cast<T*>(to);
      if (is_forward) {
        forward(p, source, other, sums.data());
        complete(Layout(p).y, p.n, p.oc, p.oh, p.ow, sums.data(), epilogue, out);
      } else {
        dgrad(p, source, other, sums.data());
        complete(Layout(p).x, p.n, p.ic, p.ih, p.iw, sums.data(), epilogue, out);
      }
    });
  }
};

constexpr ConvKernel kRecords[] = {
    {.name = "reference",
     .why_not = [](const ConvProblem&, ConvPass, const GemmKernel&) -> const char* {
       return nullptr;
     },
     .plan = make_conv_plan<ReferencePlan>,
     .on_micro_kernels = false},
};

}  // namespace

QUERN_KERNELS(ConvKernel, conv, kRecords)

}  // namespace quern::kernels
