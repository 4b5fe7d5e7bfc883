// The seven loops. Every sum runs in the accumulator's type and is rounded once.
#include "quern/ops/kernels/conv/conv_records.h"
#include "quern/ops/kernels/conv/strides.h"
#include "quern/ops/kernels/conv/work.h"
#include "quern/tensor/dtype.h"

namespace quern::kernels {
namespace {

struct Shape {
  explicit Shape(const ConvProblem& p)
      : x(p.format, p.ic, p.ih, p.iw),
        y(p.format, p.oc, p.oh, p.ow),
        icg(p.ic / p.groups),
        ocg(p.oc / p.groups),
        work(p.n * p.oc * p.oh * p.ow * icg * p.kh * p.kw) {}
  ImageStrides x, y;
  int64_t icg, ocg;  // channels of a group
  int64_t work;      // multiplications
};

template <class T>
void forward(const ConvProblem& p, const T* x, const T* w, const Accumulator<T>* bias, T* y) {
  const Shape s(p);
  parallel_pieces(p.n * p.oc, s.work / (p.n * p.oc), [&](int64_t cell) {
    const int64_t n = cell / p.oc, o = cell % p.oc;
    for (int64_t oy = 0; oy < p.oh; ++oy) {
      for (int64_t ox = 0; ox < p.ow; ++ox) {
        Accumulator<T> sum = 0;
        for (int64_t c = 0; c < s.icg; ++c) {
          for (int64_t r = 0; r < p.kh; ++r) {
            for (int64_t q = 0; q < p.kw; ++q) {
              const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
              const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
              if (iy < 0 || iy >= p.ih || ix < 0 || ix >= p.iw) continue;
              const int64_t ic = o / s.ocg * s.icg + c;
              sum +=
                  static_cast<Accumulator<T>>(x[n * s.x.n + ic * s.x.c + iy * s.x.y + ix * s.x.x]) *
                  static_cast<Accumulator<T>>(w[((o * s.icg + c) * p.kh + r) * p.kw + q]);
            }
          }
        }
        y[n * s.y.n + o * s.y.c + oy * s.y.y + ox * s.y.x] =
            static_cast<T>(bias ? sum + bias[o] : sum);
      }
    }
  });
}

template <class T>
void dgrad(const ConvProblem& p, const T* dy, const T* w, T* dx) {
  const Shape s(p);
  parallel_pieces(p.n * p.ic, s.work / (p.n * p.ic), [&](int64_t cell) {
    const int64_t n = cell / p.ic, c = cell % p.ic;
    for (int64_t iy = 0; iy < p.ih; ++iy) {
      for (int64_t ix = 0; ix < p.iw; ++ix) {
        Accumulator<T> sum = 0;
        for (int64_t j = 0; j < s.ocg; ++j) {
          for (int64_t r = 0; r < p.kh; ++r) {
            for (int64_t q = 0; q < p.kw; ++q) {
              const int64_t ty = iy + p.pad_h - r * p.dilation_h;
              const int64_t tx = ix + p.pad_w - q * p.dilation_w;
              if (ty < 0 || ty % p.stride_h != 0 || ty / p.stride_h >= p.oh) continue;
              if (tx < 0 || tx % p.stride_w != 0 || tx / p.stride_w >= p.ow) continue;
              const int64_t o = c / s.icg * s.ocg + j;
              sum +=
                  static_cast<Accumulator<T>>(dy[n * s.y.n + o * s.y.c + ty / p.stride_h * s.y.y +
                                                 tx / p.stride_w * s.y.x]) *
                  static_cast<Accumulator<T>>(w[((o * s.icg + c % s.icg) * p.kh + r) * p.kw + q]);
            }
          }
        }
        dx[n * s.x.n + c * s.x.c + iy * s.x.y + ix * s.x.x] = static_cast<T>(sum);
      }
    }
  });
}

template <class T>
void wgrad(const ConvProblem& p, const T* x, const T* dy, Accumulator<T>* dw) {
  const Shape s(p);
  parallel_pieces(p.oc * s.icg, s.work / (p.oc * s.icg), [&](int64_t cell) {
    const int64_t o = cell / s.icg, c = o / s.ocg * s.icg + cell % s.icg;
    for (int64_t r = 0; r < p.kh; ++r) {
      for (int64_t q = 0; q < p.kw; ++q) {
        Accumulator<T> sum = 0;
        for (int64_t n = 0; n < p.n; ++n) {
          for (int64_t oy = 0; oy < p.oh; ++oy) {
            for (int64_t ox = 0; ox < p.ow; ++ox) {
              const int64_t iy = oy * p.stride_h - p.pad_h + r * p.dilation_h;
              const int64_t ix = ox * p.stride_w - p.pad_w + q * p.dilation_w;
              if (iy < 0 || iy >= p.ih || ix < 0 || ix >= p.iw) continue;
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

template <class F>
void visit(const ConvPlan& plan, F f) {
  visit_floating("conv2d", plan.problem.dtype, f);
}

}  // namespace

constinit const ConvKernel conv_reference{
    .name = "reference",
    .why_not = [](const ConvProblem&, ConvPass) -> const char* { return nullptr; },
    .packed_bytes = [](const ConvPlan&) -> int64_t { return 0; },
    .pack = [](const ConvPlan&, const void*, void*) {},
    .forward =
        [](const ConvPlan& plan, const void* x, const void* w, const void* bias, void* y) {
          visit(plan, [&]<class T>(std::type_identity<T>) {
            forward(plan.problem, static_cast<const T*>(x), static_cast<const T*>(w),
                    static_cast<const Accumulator<T>*>(bias), static_cast<T*>(y));
          });
        },
    .dgrad =
        [](const ConvPlan& plan, const void* dy, const void* w, void* dx) {
          visit(plan, [&]<class T>(std::type_identity<T>) {
            dgrad(plan.problem, static_cast<const T*>(dy), static_cast<const T*>(w),
                  static_cast<T*>(dx));
          });
        },
    .wgrad =
        [](const ConvPlan& plan, const void* x, const void* dy, void* dw) {
          visit(plan, [&]<class T>(std::type_identity<T>) {
            wgrad(plan.problem, static_cast<const T*>(x), static_cast<const T*>(dy),
                  static_cast<Accumulator<T>*>(dw));
          });
        },
};

}  // namespace quern::kernels
